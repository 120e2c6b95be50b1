//! What the help of `vmio kv` and of its commands ends with.

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
  vmio kv create --size 2T --overwrite /dev/nvme1n1     though there is a file system or a store on it, which is lost";
pub const GROW_EXAMPLES: &str = "\
Examples:
  vmio kv grow words.kv 20G

No other process may have the store open; the library's Db::grow does it while it is in use.";
pub const CREATE_SEGMENT_EXAMPLES: &str = "\
Examples:
  vmio kv create-segment words.kv
  vmio kv create-segment --size 50G words.kv
  vmio kv load --keyspace archive --segment 1 words.kv < archive.txt

Prints the segment's number. A segment has a log of its own, and holds the keyspaces that are created in it.
The store becomes longer by the size; any of its segments may take what this one does not need.
No other process may have the store open; the library's Db::create_segment does it while it is in use.";
pub const PUT_EXAMPLES: &str = "\
Examples:
  vmio kv put words.kv apple red
  vmio kv put --keyspace plants words.kv apple tree
  vmio kv put words.kv film --file film.mkv
  vmio kv put words.kv '\\xff\\xfe' 'of a key that is not UTF-8'
  vmio kv put --hex words.kv fffe 00010203

In a key \\t \\n \\r \\\\ and \\xNN are bytes, as `vmio kv scan` prints them: a backslash is \\\\. A value is taken as it is, unless --hex or
--base64 says what both are.

A file's value goes past memory as it is read, up to 1 GiB; what comes through a pipe is held in memory first.";
pub const GET_EXAMPLES: &str = "\
Examples:
  vmio kv get words.kv apple
  vmio kv get words.kv picture > picture.png
  vmio kv get words.kv film --out film.mkv
  vmio kv get words.kv film --range 0..1000000
  vmio kv get words.kv apple pear plum
  vmio kv get words.kv '\\xff\\xfe'

Keys are as `vmio kv scan` prints them: \\t \\n \\r \\\\ \\x00, or with --hex or --base64. One key's value is printed byte for byte, several as `vmio kv scan` prints them.";
pub const DEL_EXAMPLES: &str = "\
Examples:
  vmio kv del words.kv apple
  vmio kv del words.kv '\\xff\\xfe'
  vmio kv del --base64 words.kv //4=

Keys are as `vmio kv scan` prints them: \\t \\n \\r \\\\ \\x00, or with --hex or --base64. A key that has no value is no error.";
pub const STAT_EXAMPLES: &str = "\
Examples:
  vmio kv stat words.kv
  vmio kv stat --json words.kv | jq .space_bytes";
pub const CHECK_HELP: &str = "\
Examples:
  vmio kv check words.kv
  vmio kv check --json words.kv | jq '.problems[]'

Nothing is changed. What is wrong is told with its place in the file, and the command fails then. Notes tell what a crash may leave.";
pub const DUMP_HELP: &str = "\
Examples:
  vmio kv dump words.kv
  vmio kv dump --structure log --json words.kv | jq 'select(.kind == \"put\")'

A line begins with the place in the file, in bytes. Nothing is changed.";
pub const BENCH_HELP: &str = "\
Examples:
  vmio kv bench /data
  vmio kv bench --records 100000 --value-bytes 1000 --durability sync .

Keys have 20 bytes. `vmio bench kv` measures more; its help says what the figures are. vmio-bench has other stores beside it.";
pub const SCAN_HELP: &str = "\
Examples:
  vmio kv scan words.kv --from a --to c --limit 10
  vmio kv scan words.kv --prefix ap --keys-only
  vmio kv scan words.kv --reverse --limit 1
  vmio kv scan words.kv --from '\\x80'
  vmio kv create copy.kv && vmio kv scan words.kv | vmio kv load copy.kv

A line is KEY, a tab, VALUE. Bytes that are not printable ASCII, and backslashes, are \\t \\n \\r \\\\ \\x00, in lines and in
what --from, --to and --prefix say. With --hex or --base64 all keys and values are written so.
With --json a line is an object such as {\"key\": \"apple\", \"value\": \"red\"}; keys and values must be UTF-8 then, or be written by --hex or
--base64. With --format csv it is KEY,VALUE. With --format binary each pair is the lengths of key and value (four bytes each, little-endian), then both.";
pub const LOAD_HELP: &str = "\
Examples:
  vmio kv load --json words.kv < words.jsonl
  printf 'pear\\tgreen\\nplum\\tblue\\n' | vmio kv load words.kv
  vmio kv scan --format binary words.kv | vmio kv load --format binary copy.kv

Lines are as `vmio kv scan` prints them: \\t \\n \\r \\\\ and \\x00 are bytes, and so are a value's other bytes, a carriage return at a line's
end too, of which a warning tells. --crlf takes that for a part of the line's end.
Prints how many rows were put. One that is wrong ends it: those before it stay, and are counted.";
