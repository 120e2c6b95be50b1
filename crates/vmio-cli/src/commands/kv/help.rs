//! The examples and notes at the end of the help of `vmio kv` and its commands.

pub const EXAMPLES: &str = "\
Examples:
  vmio kv create --size 10G words.kv
  vmio kv put words.kv apple red
  vmio kv get words.kv apple
  vmio kv scan words.kv --from a --limit 10
  printf 'pear\\tgreen\\nplum\\tblue\\n' | vmio kv load words.kv
  vmio kv stat words.kv
  vmio kv check words.kv";

pub const CREATE_EXAMPLES: &str = "\
Examples:
  vmio kv create words.kv
  vmio kv create --size 2T /dev/nvme1n1
  vmio kv create --size 2T --overwrite /dev/nvme1n1     destroys the file system or store on the device";
pub const GROW_EXAMPLES: &str = "\
Examples:
  vmio kv grow words.kv 20G

No other process may have the store open. The library's Db::grow grows a store while it is in use.";
pub const CREATE_SEGMENT_EXAMPLES: &str = "\
Examples:
  vmio kv create-segment words.kv
  vmio kv create-segment --size 50G words.kv
  vmio kv load --keyspace archive --segment 1 words.kv < archive.txt

Prints the segment's number. A segment has a log of its own, and holds the keyspaces that are created in it.
The store grows by the size. Other segments may take the space that this one does not need.
No other process may have the store open. The library's Db::create_segment adds a segment while the store is in use.";
pub const PUT_EXAMPLES: &str = "\
Examples:
  vmio kv put words.kv apple red
  vmio kv put --keyspace plants words.kv apple tree
  vmio kv put words.kv film --file film.mkv
  vmio kv put words.kv '\\xff\\xfe' 'of a key that is not UTF-8'
  vmio kv put --hex words.kv fffe 00010203

In a key \\t \\n \\r \\\\ and \\xNN are bytes, as `vmio kv scan` prints them: a backslash is \\\\. A value is taken literally, unless
--hex or --base64 is given, which applies to both.

A value from a file is streamed; a value from a pipe is held in memory first. A value may have 1 GiB.";
pub const GET_EXAMPLES: &str = "\
Examples:
  vmio kv get words.kv apple
  vmio kv get words.kv picture > picture.png
  vmio kv get words.kv film --out film.mkv
  vmio kv get words.kv film --range 0..1000000
  vmio kv get words.kv apple pear plum
  vmio kv get words.kv '\\xff\\xfe'

Write keys as `vmio kv scan` prints them: \\t \\n \\r \\\\ \\x00, or with --hex or --base64. One value is printed byte for byte, several as
`vmio kv scan` prints them.";
pub const DEL_EXAMPLES: &str = "\
Examples:
  vmio kv del words.kv apple
  vmio kv del words.kv '\\xff\\xfe'
  vmio kv del --base64 words.kv //4=

Write keys as `vmio kv scan` prints them: \\t \\n \\r \\\\ \\x00, or with --hex or --base64. A key without a value is no error.";
pub const BACKUP_HELP: &str = "\
Examples:
  vmio kv backup words.kv words.backup
  vmio kv backup words.kv - | zstd > words.backup.zst
  vmio kv backup words.kv - | ssh other vmio kv restore - words.kv

A backup has all keyspaces of all segments. A former file of that name stays until the new one is complete and durable.
No process may have the store open for writing. A program that has it open calls the library's Db::backup, which its
writers need not wait for.";
pub const RESTORE_HELP: &str = "\
Examples:
  vmio kv restore words.backup words.kv
  zstd -d < words.backup.zst | vmio kv restore - words.kv
  vmio kv restore --size 100G words.backup words.kv

The store appears under its name once the backup was read to its end, every checksum was right, and all of it is durable.
If anything is wrong there is no store. A file that exists is never overwritten.";
pub const STAT_EXAMPLES: &str = "\
Examples:
  vmio kv stat words.kv
  vmio kv stat --json words.kv | jq .space_bytes";
pub const CHECK_HELP: &str = "\
Examples:
  vmio kv check words.kv
  vmio kv check --json words.kv | jq '.problems[]'

The store is not changed. Each problem is printed with its place in the file, and the command fails. Notes name what a crash may leave.";
pub const DUMP_HELP: &str = "\
Examples:
  vmio kv dump words.kv
  vmio kv dump --structure log --json words.kv | jq 'select(.kind == \"put\")'

A line begins with the structure's place in the file, in bytes. The store is not changed.";
pub const BENCH_HELP: &str = "\
Examples:
  vmio kv bench /data
  vmio kv bench --records 100000 --value-bytes 1000 --durability sync .

Keys have 20 bytes. `vmio bench kv` measures more; its help explains the figures. vmio-bench measures other stores as well.";
pub const SCAN_HELP: &str = "\
Examples:
  vmio kv scan words.kv --from a --to c --limit 10
  vmio kv scan words.kv --prefix ap --keys-only
  vmio kv scan words.kv --reverse --limit 1
  vmio kv scan words.kv --from '\\x80'
  vmio kv create copy.kv && vmio kv scan words.kv | vmio kv load copy.kv

A line is KEY, a tab, VALUE. Bytes that are not printable ASCII, and backslashes, are \\t \\n \\r \\\\ \\x00, in lines and in
--from, --to and --prefix. With --hex or --base64 all keys and values are in that encoding.
With --json a line is an object such as {\"key\": \"apple\", \"value\": \"red\"}; keys and values must be UTF-8 then, unless --hex or
--base64 is given. With --format csv a line is KEY,VALUE. With --format binary each pair is the lengths of key and value (four bytes each,
little-endian), then both.";
pub const LOAD_HELP: &str = "\
Examples:
  vmio kv load --json words.kv < words.jsonl
  printf 'pear\\tgreen\\nplum\\tblue\\n' | vmio kv load words.kv
  vmio kv scan --format binary words.kv | vmio kv load --format binary copy.kv

Write lines as `vmio kv scan` prints them: \\t \\n \\r \\\\ and \\x00 stand for bytes. All other bytes stand for themselves, also a carriage return
at a line's end, for which a warning is printed. With --crlf it is part of the line's end.
Prints the number of rows. A bad row ends the load: the rows before it stay, and are counted.";
