//! The thread that gives the cache what the memtables do not take.

use std::sync::Arc;
use std::thread::JoinHandle;

use vmio::SignalsBlocked;

use crate::device::Device;
use crate::options::Options;
use crate::keyspace::MemtableBudget;

/// The thread.
pub(super) struct MemoryBalance {
    levels: Arc<MemtableBudget>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryBalance {
    pub(super) fn start(
        levels: &Arc<MemtableBudget>,
        device: &Arc<Device>,
        options: &Options,
    ) -> std::io::Result<MemoryBalance> {
        let (its, device, options) = (Arc::clone(levels), Arc::clone(device), options.clone());
        let _signals = SignalsBlocked::new();
        let thread = std::thread::Builder::new().name("vmio-kv-memory".to_owned()).spawn(move || {
            let mut known = None;
            while let Some(bytes) = its.wait(known) {
                known = Some(bytes);
                // To give memory back may take a while: what it is by then is looked at anew.
                if let Err(error) = device.resize_cache(options.cache_bytes_without(bytes)) {
                    tracing::warn!(%error, "the cache stays as large as it is");
                }
            }
        })?;
        Ok(MemoryBalance { levels: Arc::clone(levels), thread: Some(thread) })
    }
}

impl Drop for MemoryBalance {
    fn drop(&mut self) {
        self.levels.end();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that sizes the cache has panicked");
        }
    }
}
