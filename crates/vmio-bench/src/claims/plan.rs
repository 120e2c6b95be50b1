//! What is measured.

/// A run of vmio-bench that says JSON.
pub struct Measurement {
    /// Of its file, and on the command line.
    pub name: &'static str,
    /// Of `vmio-bench`.
    pub arguments: &'static str,
    /// Whether it works on files: `--dir` with a folder on the disk goes with it.
    pub needs_folder: bool,
}

const fn on_device(name: &'static str, arguments: &'static str) -> Measurement {
    Measurement { name, arguments, needs_folder: false }
}

const fn in_folder(name: &'static str, arguments: &'static str) -> Measurement {
    Measurement { name, arguments, needs_folder: true }
}

/// All of them.
pub const MEASUREMENTS: &[Measurement] = &[
    on_device(
        "random-loads",
        "map --device zram --size 2G --cache 512M --pattern uniform --op read --threads 1,2 --secs 10 --engines vmio,vmio-managed,mmap,pread",
    ),
    on_device(
        "random-stores",
        "map --device zram --size 2G --cache 512M --pattern uniform --op write --threads 1,2 --secs 10 --engines vmio,vmio-managed,mmap",
    ),
    on_device(
        "zipf-mixed",
        "map --device zram --size 2G --cache 512M --pattern zipf:0.99 --op mixed:50 --threads 2 --secs 10 --engines vmio,vmio-memfd,vmio-managed,mmap",
    ),
    on_device("hit", "hit --device zram --size 512M"),
    on_device("priority", "priority --device zram"),
    on_device("fresh", "fresh --device zram"),
    on_device("sync", "sync --device zram"),
    on_device(
        "ensure",
        "fetch --device zram --size 2G --cache 512M --secs 10 --ways vmio-ensure,vmio,mmap --threads 1,2",
    ),
    on_device("units", "units --device zram --size 2G --cache 512M"),
    on_device("commit", "commit --device zram --pages 16 --measures commits"),
    on_device(
        "kv",
        "kv --device zram --engines vmio,lmdb,redb,fjall,rocksdb --phases L,A,C,E --records 1000000 --memory 96M --phase-limit 60",
    ),
    on_device("heap", "heap --device zram --sides memory,vmio,mmap --rounds 3 --searches 20"),
    // Overwrites are copied once 8 MiB were written to a range: the first rounds are the kernel's.
    in_folder("posix", "posix --size 8M --cache 256M --rounds 25"),
    in_folder("posix-large", "posix --size 128M --cache 256M --rounds 25"),
    in_folder("sync-mode", "posix --mode sync --size 16M --rounds 3"),
    in_folder("strict-mode", "posix --mode strict --size 16M --rounds 3"),
    in_folder("programs", "programs --rounds 5"),
];
