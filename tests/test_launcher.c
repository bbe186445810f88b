/*
 * Every launcher: by its variables with forked ranks, PMI against a small
 * server here and against MPICH's mpirun, PMIx against Open MPI's. The real
 * ones start this very program with --rank, and are skipped where they are not
 * installed.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "comm/bootstrap.h"
#include "comm/launcher.h"
#include "comm/launcher_parts.h"
#include "forked.h"
#include "system/settings.h"

static int job_size;

/* Nothing of the launcher that may have started this test is left. */
static void clear_environment(void)
{
    static const char *const prefixes[] = {"POLYPATH_", "PMI", "OMPI_", "SLURM_", "TORCHELASTIC_", "MASTER_"};
    static const char *const names[] = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"};
    extern char **environ;
    for (size_t i = 0; environ[i];) {
        char name[256];
        bool ours = false;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(environ[i], "="), environ[i]);
        for (size_t k = 0; k < sizeof prefixes / sizeof prefixes[0]; k++)
            ours = ours || !strncmp(name, prefixes[k], strlen(prefixes[k]));
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++)
            ours = ours || !strcmp(name, names[k]);
        if (ours)
            unsetenv(name);
        else
            i++;
    }
}

static void set_number(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

/* Joins `times` times; each time the ranks exchange something, so that a wrong meeting shows. */
static polypath_result_t join_and_meet(const char *launcher, int times)
{
    for (int t = 0; t < times; t++) {
        struct launch launch;
        struct bootstrap *b;
        int all[FORKED_MAX];
        polypath_result_t result = launcher_join(&launch);
        if (result != POLYPATH_SUCCESS)
            return result;
        if (strcmp(launch.launcher, launcher) || launch.size > FORKED_MAX)
            return error_set(POLYPATH_ERROR_INTERNAL, "launcher %s, %d ranks", launch.launcher, launch.size);
        result = bootstrap_open(&launch.id, launch.rank, launch.size, &b);
        if (result != POLYPATH_SUCCESS)
            return result;
        int mine = launch.rank * 100 + t;
        result = bootstrap_all_gather(b, &mine, sizeof mine, all);
        bootstrap_close(b);
        for (int r = 0; r < launch.size && result == POLYPATH_SUCCESS; r++)
            if (all[r] != r * 100 + t)
                result = error_set(POLYPATH_ERROR_INTERNAL, "rank %d gave %d", r, all[r]);
        if (result != POLYPATH_SUCCESS)
            return result;
    }
    return POLYPATH_SUCCESS;
}

static void expect_all(struct forked *f, int n, polypath_result_t result, const char *text)
{
    for (int i = 0; i < n; i++) {
        if (f->outcome[i].result != (int)result || !strstr(f->outcome[i].text, text))
            print_message("rank %d: %d %s\n", i, f->outcome[i].result, f->outcome[i].text);
        assert_int_equal(f->outcome[i].result, result);
        assert_non_null(strstr(f->outcome[i].text, text));
    }
}

static void run_job(int size, forked_child *child)
{
    struct forked *f = forked_new();
    job_size = size;
    forked_run(f, size, child);
    expect_all(f, size, POLYPATH_SUCCESS, "");
    forked_end(f);
}

/* ------------------------------------------------------------ variables */

struct wrong {
    const char *variables[6]; /* NAME=value */
    const char *text;         /* is in the error */
};

static const struct wrong wrongs[] = {
    {{"POLYPATH_RANK=0"}, "POLYPATH_SIZE is not set"},
    {{"POLYPATH_SIZE=2"}, "POLYPATH_RANK is not set"},
    {{"POLYPATH_RANK=0", "POLYPATH_SIZE=2"}, "POLYPATH_UNIQUE_ID is not"},
    {{"POLYPATH_RANK=2", "POLYPATH_SIZE=2", "POLYPATH_UNIQUE_ID=00"}, "POLYPATH_RANK=2 must be less than"},
    {{"POLYPATH_RANK=x", "POLYPATH_SIZE=2", "POLYPATH_UNIQUE_ID=00"}, "POLYPATH_RANK=x is not a number"},
    {{"POLYPATH_RANK=1", "POLYPATH_SIZE=2", "POLYPATH_UNIQUE_ID=00"}, "POLYPATH_UNIQUE_ID: "},
    {{"POLYPATH_RANK=-1", "POLYPATH_SIZE=2", "POLYPATH_UNIQUE_ID=00"}, "POLYPATH_RANK=-1 is outside"},
    {{"POLYPATH_RANK=0", "POLYPATH_SIZE=0", "POLYPATH_UNIQUE_ID=00"}, "POLYPATH_SIZE=0 is outside"},
    {{"POLYPATH_RANK=0", "POLYPATH_SIZE=99999999999999999999"}, "POLYPATH_SIZE=99999999999999999999 is not a number"},
    {{"RANK=0"}, "WORLD_SIZE"},
    {{"WORLD_SIZE=2"}, "WORLD_SIZE=2"},
    {{"RANK=0", "MASTER_ADDR=localhost"}, "WORLD_SIZE is not set"},
    {{"RANK=5", "WORLD_SIZE=2", "MASTER_ADDR=localhost"}, "RANK=5 must be less than WORLD_SIZE=2"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost"}, "MASTER_PORT is not set"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_PORT=29500"}, "MASTER_ADDR is not set"},
    {{"RANK=0", "WORLD_SIZE=2", "MASTER_ADDR=localhost", "MASTER_PORT=70000"}, "MASTER_PORT=70000 is outside"},
    {{"TORCHELASTIC_RUN_ID=x", "WORLD_SIZE=2"}, "RANK is not set"},
    {{"PMI_FD=0", "PMI_RANK=0"}, "PMI_SIZE is not set"},
    {{"PMI_FD=4000", "PMI_RANK=0", "PMI_SIZE=2"}, "PMI_FD=4000 cannot be used"},
    {{"PMI_RANK=0", "PMI_SIZE=2"}, "PMI_FD is not set"},
    {{"OMPI_COMM_WORLD_SIZE=4"}, "Open MPI"},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0"}, "SLURM_NTASKS is not set"},
    {{"SLURM_PROCID=3", "SLURM_STEP_ID=0", "SLURM_NTASKS=2"}, "SLURM_PROCID=3 must be less than SLURM_NTASKS=2"},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=7", "SLURM_NNODES=2"}, "POLYPATH_SECRET"},
    {{"SLURM_PROCID=0", "SLURM_STEP_ID=0", "SLURM_NTASKS=2", "SLURM_JOB_ID=7"}, "SLURM_JOB_NUM_NODES is not set"},
};

static const struct wrong *wrong_now;

static polypath_result_t join_wrongly(struct forked *f, int index)
{
    (void)f;
    (void)index;
    struct launch launch;
    clear_environment();
    for (size_t i = 0; i < 6 && wrong_now->variables[i]; i++)
        putenv((char *)(uintptr_t)wrong_now->variables[i]);
    return launcher_join(&launch);
}

static void half_set_and_impossible_variables_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct forked *f = forked_new();
        wrong_now = &wrongs[i];
        forked_run(f, 1, join_wrongly);
        expect_all(f, 1, POLYPATH_ERROR_ARGUMENT, wrongs[i].text);
        forked_end(f);
    }
}

static polypath_result_t alone(struct forked *f, int index)
{
    (void)f;
    (void)index;
    clear_environment();
    return join_and_meet("none", 2);
}

static polypath_result_t in_a_batch_script(struct forked *f, int index)
{
    (void)f;
    (void)index;
    clear_environment();
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "8", 1);
    setenv("SLURM_JOB_ID", "77", 1);
    return join_and_meet("none", 1);
}

static void without_a_launcher_it_is_rank_0_of_1(void **state)
{
    (void)state;
    run_job(1, alone);
    run_job(1, in_a_batch_script);
}

/* -------------------------------------------------------------- polypath */

static polypath_result_t serve(struct forked *f)
{
    return bootstrap_serve(&f->id, "127.0.0.1");
}

static polypath_result_t under_polypath(struct forked *f, int index)
{
    char hex[2 * POLYPATH_UNIQUE_ID_BYTES + 1];
    clear_environment();
    bootstrap_format(&f->id, hex);
    setenv("POLYPATH_UNIQUE_ID", hex, 1);
    set_number("POLYPATH_RANK", index);
    set_number("POLYPATH_SIZE", job_size);
    polypath_result_t result = join_and_meet("polypath", 1);
    if (result != POLYPATH_SUCCESS)
        return result;
    struct launch again;
    return launcher_join(&again) == POLYPATH_ERROR_USAGE ? POLYPATH_SUCCESS
                                                         : error_set(POLYPATH_ERROR_INTERNAL, "joined twice");
}

static void polypath_run_hands_over_the_id(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    job_size = 3;
    forked_serve(f, serve);
    forked_run(f, 3, under_polypath);
    expect_all(f, 3, POLYPATH_SUCCESS, "");
    forked_end(f);
}

/* ------------------------------------------------------ torchrun and srun */

static int base_port; /* free just now, and probably still when it is used */

static void find_base_port(void)
{
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof any;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&any, sizeof any), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&any, &length), 0);
    close(fd);
    base_port = ntohs(any.sin_port);
}

static polypath_result_t under_torchrun(struct forked *f, int index)
{
    (void)f;
    clear_environment();
    set_number("RANK", index);
    set_number("WORLD_SIZE", job_size);
    set_number("LOCAL_WORLD_SIZE", job_size);
    set_number("MASTER_PORT", base_port);
    setenv("MASTER_ADDR", "localhost", 1);
    setenv("TORCHELASTIC_RUN_ID", "4c7e5d1f", 1);
    /* As under srun: the outer launcher's variables must not win. */
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_NTASKS", "1", 1);
    return join_and_meet("torchrun", 2);
}

static void torchrun_ranks_meet_and_can_join_again(void **state)
{
    (void)state;
    find_base_port();
    run_job(3, under_torchrun);
    base_port = 65535; /* no room behind it: ports in front of it are used */
    run_job(2, under_torchrun);
}

static polypath_result_t with_another_secret(struct forked *f, int index)
{
    (void)f;
    setenv("POLYPATH_TIMEOUT_MS", "1500", 1);
    clear_environment();
    setenv("POLYPATH_TIMEOUT_MS", "1500", 1);
    setenv("POLYPATH_SECRET", index ? "the secret of somebody else" : "the secret of this very job", 1);
    set_number("RANK", index);
    set_number("WORLD_SIZE", 2);
    set_number("MASTER_PORT", base_port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    return join_and_meet("torchrun", 1);
}

static void ranks_with_other_secrets_do_not_meet(void **state)
{
    (void)state;
    struct forked *f = forked_new();
    find_base_port();
    forked_run(f, 2, with_another_secret);
    expect_all(f, 2, POLYPATH_ERROR_TIMEOUT, "");
    assert_non_null(strstr(f->outcome[0].text, "rank 1 of 2 did not come"));
    forked_end(f);
}

static polypath_result_t under_srun(struct forked *f, int index)
{
    (void)f;
    clear_environment();
    set_number("SLURM_PROCID", index);
    set_number("SLURM_STEP_NUM_TASKS", job_size);
    setenv("SLURM_NTASKS", "64", 1); /* of the job, not of the step */
    set_number("SLURM_JOB_ID", (int)getppid());
    setenv("SLURM_STEP_ID", "1", 1);
    setenv("SLURM_STEP_NUM_NODES", "1", 1);
    return join_and_meet("slurm", 2);
}

static polypath_result_t under_srun_on_nodes(struct forked *f, int index)
{
    (void)f;
    clear_environment();
    set_number("SLURM_PROCID", index);
    set_number("SLURM_NTASKS", job_size);
    set_number("SLURM_JOB_ID", (int)getppid());
    setenv("SLURM_STEP_ID", "2", 1);
    setenv("SLURM_NNODES", "2", 1);
    setenv("SLURM_STEP_NODELIST", "localhost,node[02-04]", 1);
    setenv("POLYPATH_SECRET", "not to be guessed by anybody", 1);
    return join_and_meet("slurm", 1);
}

static void srun_ranks_meet(void **state)
{
    (void)state;
    run_job(3, under_srun);
    run_job(2, under_srun_on_nodes);
}

static void node_lists_give_their_first_host(void **state)
{
    (void)state;
    static const char *const lists[][2] = {
        {"node1", "node1"},           {"node1,node2", "node1"},
        {"node[1-4]", "node1"},       {"node[007-012,40]", "node007"},
        {"gpu[3,5],login", "gpu3"},   {"rack[2-3]node[08-09]", "rack2node08"},
        {"a-b.c_d[5]x", "a-b.c_d5x"}, {"n[12]-ib0,m", "n12-ib0"},
    };
    static const char *const wrong[] = {"",      ",a",  "n[",  "n[1",  "n[]",   "n[a-b]",
                                        "n[1-2", "n 1", "n]1", "n;rm", "n[1;2]"};
    char host[64], tiny[4];
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        assert_true(launcher_slurm_first_host(lists[i][0], host, sizeof host));
        assert_string_equal(host, lists[i][1]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_false(launcher_slurm_first_host(wrong[i], host, sizeof host));
    assert_true(launcher_slurm_first_host("abc", tiny, sizeof tiny));
    assert_false(launcher_slurm_first_host("abcd", tiny, sizeof tiny));
    assert_false(launcher_slurm_first_host("ab[12]", tiny, sizeof tiny));
}

static polypath_result_t print_secret(struct forked *f, int index)
{
    (void)f;
    (void)index;
    setenv("POLYPATH_SECRET", "hunter2hunter2hunter2", 1);
    size_t count;
    const struct setting *table = settings_table(&count);
    for (size_t i = 0; i < count; i++) {
        char text[256];
        settings_format(i, text, sizeof text);
        if (strstr(text, "hunter2") || (!strcmp(table[i].name, "secret") && strcmp(text, "(set)")))
            return error_set(POLYPATH_ERROR_INTERNAL, "%s is shown as %s", table[i].name, text);
    }
    return strcmp(settings_get()->secret, "hunter2hunter2hunter2") ? POLYPATH_ERROR_INTERNAL : POLYPATH_SUCCESS;
}

static void the_secret_is_never_printed(void **state)
{
    (void)state;
    run_job(1, print_secret);
}

/* ------------------------------------------------------------------- PMI */

/* The server's ends, and what the launcher keeps for the job. */
static int server_fds[FORKED_MAX], rank_fds[FORKED_MAX];
static int value_max;

static polypath_result_t under_pmi(struct forked *f, int index)
{
    (void)f;
    clear_environment();
    set_number("PMI_RANK", index);
    set_number("PMI_SIZE", job_size);
    set_number("PMI_FD", rank_fds[index]);
    for (int i = 0; i < job_size; i++)
        close(server_fds[i]);
    return join_and_meet("pmi", 2);
}

struct store {
    char key[64][32], value[64][300];
    int used, waiting, finalized, puts;
};

/* One line of one rank; answers as MPICH's launcher does. */
static void pmi_answer(struct store *s, int rank, char *line)
{
    char answer[400] = "", key[32] = "", value[300] = "";
    if (!strcmp(line, "cmd=init pmi_version=1 pmi_subversion=1")) {
        snprintf(answer, sizeof answer, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n");
    } else if (!strcmp(line, "cmd=get_maxes")) {
        snprintf(answer, sizeof answer, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=%d\n", value_max);
    } else if (!strcmp(line, "cmd=get_my_kvsname")) {
        snprintf(answer, sizeof answer, "cmd=my_kvsname kvsname=kvs_1\n");
    } else if (sscanf(line, "cmd=put kvsname=kvs_1 key=%31s value=%299s", key, value) == 2) {
        bool fits = (int)strlen(value) < value_max && s->used < 64;
        if (fits) {
            snprintf(s->key[s->used], sizeof s->key[0], "%s", key);
            snprintf(s->value[s->used++], sizeof s->value[0], "%s", value);
        }
        snprintf(answer, sizeof answer, "cmd=put_result rc=%d msg=%s\n", fits ? 0 : -1, fits ? "success" : "too_long");
    } else if (!strcmp(line, "cmd=barrier_in")) {
        if (++s->waiting == job_size) {
            s->waiting = 0;
            for (int i = 0; i < job_size; i++)
                assert_int_equal(send(server_fds[i], "cmd=barrier_out\n", 16, MSG_NOSIGNAL), 16);
        }
        return;
    } else if (sscanf(line, "cmd=get kvsname=kvs_1 key=%31s", key) == 1) {
        snprintf(answer, sizeof answer, "cmd=get_result rc=-1 msg=key_not_found value=unknown\n");
        for (int i = 0; i < s->used; i++)
            if (!strcmp(s->key[i], key))
                snprintf(answer, sizeof answer, "cmd=get_result rc=0 msg=success value=%s\n", s->value[i]);
    } else if (!strcmp(line, "cmd=finalize")) {
        s->finalized++;
        snprintf(answer, sizeof answer, "cmd=finalize_ack\n");
    }
    assert_true(*answer);
    assert_int_equal(send(server_fds[rank], answer, strlen(answer), MSG_NOSIGNAL), strlen(answer));
}

static void pmi_serve(struct store *s)
{
    char lines[FORKED_MAX][1024];
    size_t have[FORKED_MAX] = {0};
    int open = job_size;
    while (open) {
        struct pollfd fds[FORKED_MAX];
        for (int r = 0; r < job_size; r++)
            fds[r] = (struct pollfd){.fd = server_fds[r], .events = POLLIN};
        assert_true(poll(fds, (nfds_t)job_size, -1) > 0);
        for (int r = 0; r < job_size; r++) {
            if (server_fds[r] < 0)
                continue;
            char byte;
            ssize_t n = recv(server_fds[r], &byte, 1, MSG_DONTWAIT);
            if (n == 0) {
                close(server_fds[r]);
                server_fds[r] = -1;
                open--;
            } else if (n > 0 && byte == '\n') {
                lines[r][have[r]] = 0;
                have[r] = 0;
                pmi_answer(s, r, lines[r]);
            } else if (n > 0) {
                assert_true(have[r] < sizeof lines[r] - 1);
                lines[r][have[r]++] = byte;
            }
        }
    }
}

static void pmi_ranks_meet_through_short_values(void **state)
{
    (void)state;
    static const int limits[] = {1024, 257, 256, 32, 17};
    for (size_t k = 0; k < sizeof limits / sizeof limits[0]; k++) {
        struct forked *f = forked_new();
        struct store store = {.used = 0};
        pid_t pids[3];
        job_size = 3;
        value_max = limits[k];
        for (int i = 0; i < 3; i++) {
            int pair[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
            server_fds[i] = pair[0];
            rank_fds[i] = pair[1];
        }
        for (int i = 0; i < 3; i++)
            pids[i] = forked_start(f, i, under_pmi);
        for (int i = 0; i < 3; i++)
            close(rank_fds[i]);
        pmi_serve(&store);
        for (int i = 0; i < 3; i++)
            waitpid(pids[i], NULL, 0);
        expect_all(f, 3, POLYPATH_SUCCESS, "");
        forked_end(f);
    }
}

static polypath_result_t under_rude_pmi(struct forked *f, int index)
{
    (void)f;
    clear_environment();
    set_number("PMI_RANK", 0);
    set_number("PMI_SIZE", 2);
    set_number("PMI_FD", rank_fds[index]);
    struct launch launch;
    return launcher_join(&launch);
}

static void rude_pmi_launchers_are_errors(void **state)
{
    (void)state;
    static const char *const answers[][2] = {
        {"cmd=response_to_init pmi_version=1 rc=-1\n", "refused"},
        {"nonsense\n", "unexpected answer"},
        {"cmd=response_to_init", "closed the connection"},
        {"cmd=response_to_init rc=0\ncmd=maxes vallen_max=1\n", "allows no values"},
        {"cmd=response_to_init rc=0\ncmd=maxes vallen_max=99\ncmd=my_kvsname\n", "names no key-value space"},
    };
    for (size_t i = 0; i < sizeof answers / sizeof answers[0]; i++) {
        struct forked *f = forked_new();
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        rank_fds[0] = pair[1];
        assert_int_equal(send(pair[0], answers[i][0], strlen(answers[i][0]), 0), strlen(answers[i][0]));
        shutdown(pair[0], SHUT_WR);
        forked_run(f, 1, under_rude_pmi);
        assert_true(f->outcome[0].result > 0);
        if (!strstr(f->outcome[0].text, answers[i][1]))
            print_message("%s\n", f->outcome[0].text);
        assert_non_null(strstr(f->outcome[0].text, answers[i][1]));
        close(pair[0]);
        close(pair[1]);
        forked_end(f);
    }
}

/* ------------------------------------------------------- real launchers */

static int as_rank(const char *launcher)
{
    alarm(FORKED_HANG_S);
    if (join_and_meet(launcher, 2) != POLYPATH_SUCCESS) {
        fprintf(stderr, "%s\n", error_text());
        return 1;
    }
    return 0;
}

static void under_mpirun(const char *mpirun, const char *arguments, const char *launcher)
{
    char path[4096], command[8192];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", mpirun);
    if (system(command))
        skip();
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    assert_true(n > 0);
    path[n] = 0;
    /* libpmix's own leaks are not ours to report. */
    snprintf(command, sizeof command, "ASAN_OPTIONS=detect_leaks=0 %s %s -n 3 '%s' --rank %s", mpirun, arguments, path,
             launcher);
    assert_int_equal(system(command), 0);
}

static void ranks_meet_under_open_mpi(void **state)
{
    (void)state;
    under_mpirun("mpirun.openmpi", "--allow-run-as-root --oversubscribe", "pmix");
}

static void ranks_meet_under_mpich(void **state)
{
    (void)state;
    under_mpirun("mpirun.mpich", "", "pmi");
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--rank"))
        return as_rank(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_set_and_impossible_variables_are_named),
        cmocka_unit_test(without_a_launcher_it_is_rank_0_of_1),
        cmocka_unit_test(polypath_run_hands_over_the_id),
        cmocka_unit_test(torchrun_ranks_meet_and_can_join_again),
        cmocka_unit_test(ranks_with_other_secrets_do_not_meet),
        cmocka_unit_test(srun_ranks_meet),
        cmocka_unit_test(node_lists_give_their_first_host),
        cmocka_unit_test(the_secret_is_never_printed),
        cmocka_unit_test(pmi_ranks_meet_through_short_values),
        cmocka_unit_test(rude_pmi_launchers_are_errors),
        cmocka_unit_test(ranks_meet_under_open_mpi),
        cmocka_unit_test(ranks_meet_under_mpich),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
