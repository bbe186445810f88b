/*
 * The relay process and how it is started. See lab_relay.h. The taps carry the
 * rate by tbf like any other interface; here is what a queueing discipline of
 * this kernel cannot do. Random numbers come from a generator with a fixed
 * start, so that a run can be repeated.
 */
#include "frontends/cli/lab_relay.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <malloc.h>
#include <net/if_arp.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "frontends/cli/cli.h"
#include "frontends/cli/lab_net.h"
#include "frontends/cli/lab_state.h"
#include "system/clock.h"
#include "system/error.h"

#define HEADER_BYTES (sizeof(struct virtio_net_hdr))
#define ETHERNET_BYTES 14
#define PACKET_MAX (HEADER_BYTES + 65536 + ETHERNET_BYTES)
#define QUEUE_MAX_BYTES (256u << 20)    /* of all ports together */
#define PORT_QUEUE_NS (10 * 1000000ull) /* how far a receiver's own rate may be behind, as tbf's latency */
#define BATCH 64                        /* packets from one tap before the others get their turn */
#define TAP_QUEUE 4096                  /* packets that wait in the kernel for us */
#define SLACK_NS 10000ull               /* a packet due this soon is sent with the others */

enum { TAG_SIGNAL = LAB_HOSTS_MAX, TAG_TIMER };

struct packet {
    struct packet *next;
    uint64_t due_ns;
    uint32_t bytes;
    char data[]; /* virtio header and frame */
};

/* A host's tap, and the packets on their way to it, in the order in which they are due. */
struct port {
    int tap;
    struct packet *first, *last;
    uint64_t last_due_ns, free_ns;
};

struct relay {
    struct lab lab;
    int index;
    struct port ports[LAB_HOSTS_MAX];
    int epoll, timer, signals;
    uint64_t armed_ns; /* what the timer is set to; 0: off */
    size_t queued_bytes;
    uint64_t random;
    struct relay_counters *counters;
    char buffer[PACKET_MAX];
};

static const struct lab_link *link_of(const struct relay *relay)
{
    return &relay->lab.links[relay->index];
}

/* Only the relay writes; whoever reads wants each number for itself, so no ordering is needed. */
static void count(_Atomic uint64_t *counter)
{
    atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + 1, memory_order_relaxed);
}

/* xorshift64*, Marsaglia and Vigna */
static uint32_t random_next(struct relay *relay)
{
    relay->random ^= relay->random >> 12;
    relay->random ^= relay->random << 25;
    relay->random ^= relay->random >> 27;
    return (uint32_t)((relay->random * 2685821657736338717ull) >> 32);
}

static bool chance(struct relay *relay, uint32_t ppm)
{
    return ppm && ((uint64_t)random_next(relay) * 1000000 >> 32) < ppm;
}

/* -------------------------------------------------------------- forwarding */

static void transmit(struct relay *relay, const struct port *port, const char *data, size_t bytes)
{
    if (write(port->tap, data, bytes) == (ssize_t)bytes)
        count(&relay->counters->forwarded);
    else /* the host's interface is down */
        count(&relay->counters->dropped);
}

static void enqueue(struct relay *relay, struct port *port, const char *data, size_t bytes, uint64_t now)
{
    const struct lab_link *link = link_of(relay);
    uint64_t due = now + link->delay_ns;
    if (due < port->last_due_ns) /* the delay has just been made shorter: order is kept */
        due = port->last_due_ns;
    /* With several senders the receiver's interface has its own limit, behind the delay. */
    if (link->rate_bits && relay->lab.hosts > 2) {
        if (port->free_ns > due + PORT_QUEUE_NS) {
            count(&relay->counters->dropped);
            return;
        }
        if (due < port->free_ns)
            due = port->free_ns;
        port->free_ns = due + (uint64_t)((double)(bytes - HEADER_BYTES) * 8e9 / (double)link->rate_bits);
    }
    struct packet *packet = relay->queued_bytes + bytes > QUEUE_MAX_BYTES ? NULL : malloc(sizeof *packet + bytes);
    if (!packet) {
        count(&relay->counters->dropped);
        return;
    }
    packet->next = NULL;
    packet->due_ns = port->last_due_ns = due;
    packet->bytes = (uint32_t)bytes;
    memcpy(packet->data, data, bytes);
    if (port->last)
        port->last->next = packet;
    else
        port->first = packet;
    port->last = packet;
    relay->queued_bytes += bytes;
    count(&relay->counters->delayed);
}

/* One packet to one port, with the link's faults. */
static void carry(struct relay *relay, struct port *port, char *data, size_t bytes, uint64_t now)
{
    const struct lab_link *link = link_of(relay);
    if (chance(relay, link->loss_ppm)) {
        count(&relay->counters->lost);
        return;
    }
    size_t place = 0;
    char bit = 0;
    if (bytes > HEADER_BYTES + ETHERNET_BYTES && chance(relay, link->corrupt_ppm)) {
        place = HEADER_BYTES + ETHERNET_BYTES + random_next(relay) % (bytes - HEADER_BYTES - ETHERNET_BYTES);
        bit = (char)(1 << (random_next(relay) % 8));
        data[place] ^= bit;
        count(&relay->counters->corrupted);
    }
    if (chance(relay, link->reorder_ppm)) { /* overtakes those that wait */
        count(&relay->counters->reordered);
        transmit(relay, port, data, bytes);
    } else if (!port->first && !link->delay_ns && !(link->rate_bits && relay->lab.hosts > 2)) {
        transmit(relay, port, data, bytes);
    } else {
        enqueue(relay, port, data, bytes, now);
    }
    if (place)
        data[place] ^= bit; /* a copy for another port has luck of its own */
}

/* To the host that the address names; we gave the taps addresses that end in the host's number. */
static void forward(struct relay *relay, int from, size_t bytes, uint64_t now)
{
    if (bytes < HEADER_BYTES + ETHERNET_BYTES)
        return;
    const unsigned char *to = (const unsigned char *)relay->buffer + HEADER_BYTES;
    bool everyone = to[0] & 1;
    for (int h = 0; h < relay->lab.hosts; h++)
        if (h != from && (everyone || to[5] == h))
            carry(relay, &relay->ports[h], relay->buffer, bytes, now);
}

static void receive(struct relay *relay, int host)
{
    for (int i = 0; i < BATCH; i++) {
        ssize_t got = read(relay->ports[host].tap, relay->buffer, sizeof relay->buffer);
        if (got <= 0)
            return;
        forward(relay, host, (size_t)got, clock_now_ns());
    }
}

/* Sends what is due and sets the timer to what is next. */
static void deliver(struct relay *relay)
{
    uint64_t now = clock_now_ns(), next = UINT64_MAX;
    for (int h = 0; h < relay->lab.hosts; h++) {
        struct port *port = &relay->ports[h];
        struct packet *packet;
        while ((packet = port->first) && packet->due_ns <= now + SLACK_NS) {
            transmit(relay, port, packet->data, packet->bytes);
            port->first = packet->next;
            if (!port->first)
                port->last = NULL;
            relay->queued_bytes -= packet->bytes;
            free(packet);
        }
        if (packet && packet->due_ns < next)
            next = packet->due_ns;
    }
    if (next == UINT64_MAX || next == relay->armed_ns)
        return;
    struct itimerspec time = {
        .it_value = {.tv_sec = (time_t)(next / 1000000000), .tv_nsec = (long)(next % 1000000000)}};
    timerfd_settime(relay->timer, TFD_TIMER_ABSTIME, &time, NULL);
    relay->armed_ns = next;
}

/*
 * With offloads a host hands over segments of up to 64 KiB with their checksum
 * still to be made, which is several times faster; faults are to hit single
 * packets, and a corrupted one must have a checksum to be found out by.
 */
static void set_offload(struct relay *relay)
{
    const struct lab_link *link = link_of(relay);
    bool faults = link->loss_ppm || link->reorder_ppm || link->corrupt_ppm;
    unsigned long features = faults ? 0 : TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    for (int h = 0; h < relay->lab.hosts; h++)
        ioctl(relay->ports[h].tap, TUNSETOFFLOAD, features);
}

/* False: time to go. */
static bool on_signal(struct relay *relay)
{
    struct signalfd_siginfo info;
    if (read(relay->signals, &info, sizeof info) != sizeof info)
        return true;
    if (info.ssi_signo != SIGHUP)
        return false;
    struct lab fresh;
    if (!lab_load(relay->lab.name, &fresh) && fresh.hosts == relay->lab.hosts && fresh.link_count > relay->index)
        relay->lab = fresh;
    set_offload(relay);
    return true;
}

static void serve(struct relay *relay)
{
    struct epoll_event events[LAB_HOSTS_MAX + 2];
    for (;;) {
        int ready = epoll_wait(relay->epoll, events, LAB_HOSTS_MAX + 2, -1);
        for (int i = 0; i < ready; i++) {
            uint64_t expired;
            if (events[i].data.u32 < LAB_HOSTS_MAX)
                receive(relay, (int)events[i].data.u32);
            else if (events[i].data.u32 == TAG_SIGNAL && !on_signal(relay))
                return;
            else if (events[i].data.u32 == TAG_TIMER && read(relay->timer, &expired, sizeof expired) > 0)
                relay->armed_ns = 0;
        }
        deliver(relay);
    }
}

/* ------------------------------------------------------------- making taps */

static polypath_result_t open_tun(int *fd)
{
    *fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) { /* as in a bare container; the kernel may well have it */
        mkdir("/dev/net", 0755);
        if (!mknod("/dev/net/tun", S_IFCHR | 0600, makedev(10, 200)) || errno == EEXIST)
            *fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    }
    if (*fd < 0)
        return error_set(POLYPATH_ERROR_UNSUPPORTED,
                         "delay, reorder and corrupt need netem or TUN devices in the kernel, and /dev/net/tun cannot "
                         "be opened: %s",
                         strerror(errno));
    return POLYPATH_SUCCESS;
}

static polypath_result_t set_device(const struct relay *relay, int host)
{
    struct ifreq request = {0};
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memcpy(request.ifr_name, link_of(relay)->name, IF_NAMESIZE);
    request.ifr_mtu = link_of(relay)->mtu;
    int failed = control < 0 || ioctl(control, SIOCSIFMTU, &request);
    request.ifr_qlen = TAP_QUEUE;
    failed = failed || ioctl(control, SIOCSIFTXQLEN, &request);
    const unsigned char address[6] = {0x02, 0x70, 0x70, (unsigned char)relay->index, 0, (unsigned char)host};
    memset(&request.ifr_hwaddr, 0, sizeof request.ifr_hwaddr);
    request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
    memcpy(request.ifr_hwaddr.sa_data, address, sizeof address);
    failed = failed || ioctl(control, SIOCSIFHWADDR, &request);
    int reason = errno;
    if (control >= 0)
        close(control);
    return failed ? error_set(POLYPATH_ERROR_SYSTEM, "cannot set up the tap: %s", strerror(reason)) : POLYPATH_SUCCESS;
}

/* Called in the host's namespace, in which the tap appears. */
static polypath_result_t make_tap(struct relay *relay, int host)
{
    struct ifreq request = {.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR};
    int fd;
    polypath_result_t result = open_tun(&fd);
    if (result)
        return result;
    memcpy(request.ifr_name, link_of(relay)->name, IF_NAMESIZE);
    if (ioctl(fd, TUNSETIFF, &request)) {
        int reason = errno;
        close(fd);
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot make a tap: %s", strerror(reason));
    }
    relay->ports[host].tap = fd;
    return set_device(relay, host);
}

static bool watch(const struct relay *relay, int fd, uint32_t tag)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = tag};
    return !epoll_ctl(relay->epoll, EPOLL_CTL_ADD, fd, &event);
}

static polypath_result_t make_ports(struct relay *relay)
{
    char namespace[LAB_NAMESPACE_BYTES];
    for (int h = 0; h < relay->lab.hosts; h++) {
        int back;
        polypath_result_t result = namespace_enter(lab_namespace(namespace, relay->lab.name, h), &back);
        if (result)
            return result;
        result = make_tap(relay, h);
        namespace_leave(back);
        if (result)
            return error_prefix(result, "link %s at host %d", link_of(relay)->name, h);
        watch(relay, relay->ports[h].tap, (uint32_t)h);
    }
    set_offload(relay);
    return POLYPATH_SUCCESS;
}

static polypath_result_t make_counters(struct relay *relay)
{
    char path[160];
    int fd =
        open(lab_relay_file(path, relay->lab.name, link_of(relay)->name), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    void *memory = MAP_FAILED;
    if (fd >= 0 && !ftruncate(fd, sizeof *relay->counters))
        memory = mmap(NULL, sizeof *relay->counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int reason = errno;
    if (fd >= 0)
        close(fd);
    if (memory == MAP_FAILED)
        return error_set(POLYPATH_ERROR_SYSTEM, "cannot keep counters in %s: %s", path, strerror(reason));
    relay->counters = memory;
    return POLYPATH_SUCCESS;
}

static polypath_result_t prepare(struct relay *relay)
{
    char namespace[LAB_NAMESPACE_BYTES];
    int back;
    /* For good: whoever ends the processes of the lab's namespaces ends the relay too. */
    polypath_result_t result = namespace_enter(lab_namespace(namespace, relay->lab.name, LAB_SWITCH), &back);
    if (result)
        return result;
    close(back);
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGTERM);
    sigprocmask(SIG_SETMASK, &signals, NULL);
    relay->epoll = epoll_create1(EPOLL_CLOEXEC);
    relay->signals = signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
    relay->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (!watch(relay, relay->signals, TAG_SIGNAL) || !watch(relay, relay->timer, TAG_TIMER))
        return error_set(POLYPATH_ERROR_SYSTEM, "no event loop: %s", strerror(errno));
    result = make_ports(relay);
    if (!result)
        result = make_counters(relay);
    if (!result && !lab_exists(relay->lab.name)) /* taken away meanwhile, with the maker of this */
        result = error_set(POLYPATH_ERROR_ABORTED, "the lab has gone");
    return result;
}

/* ------------------------------------------------------- the process itself */

struct arguments {
    const char *lab;
    int index;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct arguments *arguments = state->input;
    switch (key) {
    case 'l': arguments->lab = arg; return 0;
    case 'i': arguments->index = atoi(arg); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int lab_relay_main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"lab", 'l', "NAME", 0, "the lab", 0}, {"index", 'i', "N", 0, "the number of the link", 0}, {0}};
    static const struct argp argp = {
        .options = options, .parser = parse, .doc = "Internal: `lab up' starts one for each link that needs it."};
    struct arguments arguments = {.lab = ""};
    if (argp_parse(&argp, argc, argv, 0, NULL, &arguments) || !lab_is_root(argv[0]))
        return CLI_FAILURE;
    struct relay *relay = calloc(1, sizeof *relay);
    if (!relay)
        return CLI_FAILURE;
    mallopt(M_TRIM_THRESHOLD, QUEUE_MAX_BYTES); /* queues come and go; the memory stays */
    relay->index = arguments.index;
    relay->random = 0x9e3779b97f4a7c15ull * (uint64_t)(arguments.index + 1);
    polypath_result_t result = lab_load(arguments.lab, &relay->lab);
    if (!result && (arguments.index < 0 || arguments.index >= relay->lab.link_count))
        result = error_set(POLYPATH_ERROR_ARGUMENT, "no such link");
    if (!result)
        result = prepare(relay);
    if (result) {
        printf("%s\n", error_text());
        free(relay);
        return CLI_FAILURE;
    }
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 1);
    serve(relay);
    free(relay);
    return CLI_SUCCESS;
}

/* -------------------------------------------------------- from the outside */

static _Noreturn void become_relay(int answer, const char *lab, int index)
{
    char number[16];
    snprintf(number, sizeof number, "%d", index);
    setsid();
    if (fork() != 0) /* so that it is nobody's child and no rank's launcher takes it for an orphan */
        _exit(0);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, 0);
    dup2(answer, 1);
    dup2(null, 2);
    close_range(3, ~0u, 0);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char *const nothing[] = {NULL}; /* marks in the environment must not tie it to whoever runs `lab up' */
    if (!chdir("/"))
        execle("/proc/self/exe", "polypath", "lab", "relay", "--lab", lab, "--index", number, (char *)NULL, nothing);
    dprintf(1, "cannot start the relay: %s\n", strerror(errno));
    _exit(1);
}

polypath_result_t relay_start(struct lab *lab, int index)
{
    int ends[2], pid = 0;
    if (pipe2(ends, O_CLOEXEC))
        return error_set(POLYPATH_ERROR_SYSTEM, "no pipe to the relay: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0)
        become_relay(ends[1], lab->name, index);
    close(ends[1]);
    char answer[ERROR_TEXT_BYTES] = "";
    FILE *from = fdopen(ends[0], "r");
    bool answered = child > 0 && from && fgets(answer, sizeof answer, from);
    if (from)
        fclose(from);
    else
        close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR)
        ;
    if (answered && sscanf(answer, "ready %d", &pid) == 1) {
        lab->links[index].relay = pid;
        return POLYPATH_SUCCESS;
    }
    answer[strcspn(answer, "\n")] = '\0';
    return error_set(POLYPATH_ERROR_SYSTEM, "the relay of link %s: %s", lab->links[index].name,
                     answered ? answer : "it ended without a word");
}

static void find_relay(void *context, pid_t pid)
{
    pid_t *relay = context;
    if (pid == *relay)
        *relay = -pid; /* seen */
}

polypath_result_t relay_reload(const struct lab *lab, int index)
{
    char namespace[LAB_NAMESPACE_BYTES];
    pid_t relay = lab->links[index].relay;
    /* The number may be another process's by now; only one in our namespace is ours. */
    lab_each_process(lab_namespace(namespace, lab->name, LAB_SWITCH), find_relay, &relay);
    if (relay >= 0 || kill(-relay, SIGHUP))
        return error_set(POLYPATH_ERROR_SYSTEM, "the relay of link %s has died", lab->links[index].name);
    return POLYPATH_SUCCESS;
}

bool relay_read_counters(const char *lab, const char *link, struct relay_counters *counters)
{
    char path[160];
    int fd = open(lab_relay_file(path, lab, link), O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool whole = read(fd, counters, sizeof *counters) == sizeof *counters;
    close(fd);
    return whole;
}
