//! The thread that lets the cache have the memory that the memtables do not take.

use std::sync::Arc;
use std::thread::JoinHandle;

use vmio::SignalsBlocked;

use crate::device::Device;
use crate::keyspace::MemtableBudget;
use crate::options::Options;

/// The thread.
pub(super) struct MemoryBalance {
    budget: Arc<MemtableBudget>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryBalance {
    pub(super) fn start(
        budget: &Arc<MemtableBudget>,
        device: &Arc<Device>,
        options: &Options,
    ) -> std::io::Result<MemoryBalance> {
        let (its, device, options) = (Arc::clone(budget), Arc::clone(device), options.clone());
        let _signals = SignalsBlocked::new();
        let thread = std::thread::Builder::new().name("vmio-kv-memory".to_owned()).spawn(move || {
            let mut known = None;
            while let Some(bytes) = its.wait(known) {
                known = Some(bytes);
                // Giving memory back may take a while: the next round goes by the memtables' size at that time.
                if let Err(error) = device.resize_cache(options.cache_bytes_without(bytes)) {
                    tracing::warn!(%error, "the cache stays as large as it is");
                }
            }
        })?;
        Ok(MemoryBalance { budget: Arc::clone(budget), thread: Some(thread) })
    }
}

impl Drop for MemoryBalance {
    fn drop(&mut self) {
        self.budget.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that sizes the cache has panicked");
        }
    }
}
