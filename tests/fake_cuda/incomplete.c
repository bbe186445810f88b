/*
 * A driver that lacks almost everything: only to see that this is said.
 */
__attribute__((visibility("default"))) unsigned cuDriverGetVersion(int *version);

unsigned cuDriverGetVersion(int *version)
{
    *version = 12020;
    return 0;
}
