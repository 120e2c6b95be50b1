/* Writes to an LMDB database and reads it back; prints the records.
 *
 * usage: lmdb FOLDER writemap|write */
#include <inttypes.h>
#include <lmdb.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RECORDS = 20000, BATCHES = 10 };

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %s\n", what, mdb_strerror(code));
    exit(1);
}

static uint64_t scattered(uint64_t n) { return n * 0x9E3779B97F4A7C15u; }

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    MDB_env *env;
    MDB_dbi dbi;
    MDB_txn *txn;
    MDB_val key, value;
    check(mdb_env_create(&env), "create");
    check(mdb_env_set_mapsize(env, 256 << 20), "mapsize");
    check(mdb_env_open(env, argv[1], strcmp(argv[2], "writemap") ? 0 : MDB_WRITEMAP, 0664), "open");
    for (int batch = 0; batch < BATCHES; batch++) {
        check(mdb_txn_begin(env, NULL, 0, &txn), "begin");
        check(mdb_dbi_open(txn, NULL, 0, &dbi), "dbi");
        for (uint64_t n = batch * (RECORDS / BATCHES); n < (batch + 1u) * (RECORDS / BATCHES); n++) {
            uint64_t name = scattered(n);
            char bytes[600];
            memset(bytes, 'a' + n % 26, sizeof bytes);
            key = (MDB_val){sizeof name, &name};
            value = (MDB_val){sizeof bytes, bytes};
            check(mdb_put(txn, dbi, &key, &value, 0), "put");
            if (n % 3 == 2) {
                uint64_t gone = scattered(n - 1);
                key = (MDB_val){sizeof gone, &gone};
                check(mdb_del(txn, dbi, &key, NULL), "del");
            }
        }
        check(mdb_txn_commit(txn), "commit");
    }
    check(mdb_txn_begin(env, NULL, MDB_RDONLY, &txn), "begin to read");
    MDB_cursor *cursor;
    check(mdb_cursor_open(txn, dbi, &cursor), "cursor");
    uint64_t sum = 0, records = 0;
    while (mdb_cursor_get(cursor, &key, &value, MDB_NEXT) == 0) {
        uint64_t name;
        memcpy(&name, key.mv_data, sizeof name);
        sum = sum * 31 + name + ((char *)value.mv_data)[599];
        records++;
    }
    MDB_stat stat;
    check(mdb_stat(txn, dbi, &stat), "stat");
    mdb_cursor_close(cursor);
    mdb_txn_abort(txn);
    mdb_env_close(env);
    printf("%" PRIu64 " records of %zu, %016" PRIx64 "\n", records, stat.ms_entries, sum);
    return 0;
}
