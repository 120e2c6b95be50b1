/* Gets of random records of an LMDB, of which a record fills a quarter of a page, and puts, each a transaction that is durable, for `vmio run`.
 *
 * usage: lmdb FOLDER make RECORDS, then lmdb FOLDER get GETS, or put PUTS */
#include <lmdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "clock_and_numbers.h"

enum { VALUE_BYTES = 1000, BATCH = 1000 };

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, mdb_strerror(code));
    exit(1);
}

static void make(MDB_env *env, uint32_t records) {
    static char bytes[VALUE_BYTES];
    MDB_txn *txn;
    MDB_dbi dbi;
    for (uint32_t n = 0; n < records; n++) {
        uint32_t name = __builtin_bswap32(n);
        MDB_val key = {sizeof name, &name}, value = {sizeof bytes, bytes};
        memcpy(bytes, &n, sizeof n);
        if (n % BATCH == 0) {
            check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
            check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
        }
        check(mdb_put(txn, dbi, &key, &value, MDB_APPEND), "put");
        if (n % BATCH == BATCH - 1 || n + 1 == records) check(mdb_txn_commit(txn), "commit");
    }
}

/* Page faults of this process. */
static long faults(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt + usage.ru_majflt;
}

static void get(MDB_env *env, uint32_t gets) {
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_stat stat;
    long before = faults();
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin");
    check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
    check(mdb_stat(txn, dbi, &stat), "stat");
    uint64_t state = 1, began = 0;
    /* The first half fills the cache. */
    for (uint32_t n = 0; n < gets; n++) {
        if (n == gets / 2) began = now_ns();
        uint32_t number = next(&state) % stat.ms_entries, name = __builtin_bswap32(number), found;
        MDB_val key = {sizeof name, &name}, value;
        check(mdb_get(txn, dbi, &key, &value), "get");
        memcpy(&found, value.mv_data, sizeof found);
        if (found != number) fprintf(stderr, "record %u has the value of %u\n", number, found), exit(1);
    }
    printf("ns a get: %llu; page faults of all gets: %ld\n", (unsigned long long)(now_ns() - began) / (gets - gets / 2), faults() - before);
    mdb_txn_abort(txn);
}

static void put(MDB_env *env, uint32_t puts) {
    static char bytes[VALUE_BYTES];
    MDB_txn *txn;
    MDB_dbi dbi;
    MDB_stat stat;
    uint64_t state = 2, began = 0;
    long before = faults();
    for (uint32_t n = 0; n < puts; n++) {
        if (n == puts / 2) began = now_ns();
        check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, 0, &dbi), "open");
        check(mdb_stat(txn, dbi, &stat), "stat");
        uint32_t number = next(&state) % stat.ms_entries, name = __builtin_bswap32(number);
        MDB_val key = {sizeof name, &name}, value = {sizeof bytes, bytes};
        memcpy(bytes, &number, sizeof number);
        check(mdb_put(txn, dbi, &key, &value, 0), "put");
        check(mdb_txn_commit(txn), "commit");
    }
    printf("ns a put: %llu; page faults of all puts: %ld\n", (unsigned long long)(now_ns() - began) / (puts - puts / 2), faults() - before);
}

int main(int argc, char **argv) {
    if (argc != 4) return 64;
    MDB_env *env;
    int makes = strcmp(argv[2], "make") == 0, puts = strcmp(argv[2], "put") == 0;
    check(mdb_env_create(&env), "create");
    check(mdb_env_set_mapsize(env, 256 << 20), "mapsize");
    check(mdb_env_open(env, argv[1], makes ? MDB_NOSYNC : puts ? 0 : MDB_RDONLY | MDB_NOLOCK | MDB_NORDAHEAD, 0664), "open");
    if (makes) make(env, atoi(argv[3]));
    else if (puts) put(env, atoi(argv[3]));
    else get(env, atoi(argv[3]));
    if (makes) check(mdb_env_sync(env, 1), "sync");
    mdb_env_close(env);
    return 0;
}
