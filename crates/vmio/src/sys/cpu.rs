//! Which core runs the caller: the index into per-core structures.

/// The core that runs the calling thread. Only a hint: the thread may move at any time.
pub(crate) fn current() -> usize {
    rustix::thread::sched_getcpu()
}

/// Cores that the process may run on, at least 1. Reads files: not for the trap path.
pub(crate) fn count() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}
