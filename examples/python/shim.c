/* What a task in Python needs in C: five lines, since an orbit's entry is a function of a loaded
 * library. Build: cc -shared -fPIC shim.c -o libshim.so */
struct request {
    long (*function)(void *store, void *args); /* the CFUNCTYPE object's pointer */
    unsigned long args[2];
};
long shim_entry(void *store, void *args)
{
    struct request *request = args;
    return request->function(store, request->args);
}
