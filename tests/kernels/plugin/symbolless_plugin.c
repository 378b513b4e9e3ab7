/* A library that is no plugin. */
int cpscope_is_not_here(void) { return 0; }
