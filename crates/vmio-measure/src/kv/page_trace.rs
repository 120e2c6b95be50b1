//! A file of the pages that vmio-kv touches, in order; `vmio sim` reads it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use parking_lot::Mutex;

/// The file while it is written: each line is `page,load` or `page,store`.
pub struct PageTrace {
    out: Mutex<BufWriter<File>>,
}

impl PageTrace {
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("cannot write the trace {}", path.display()))?;
        Ok(Self { out: Mutex::new(BufWriter::with_capacity(1 << 20, file)) })
    }

    /// Records a page. [`Self::finish`] reports write errors.
    pub fn note(&self, page: u64, is_store: bool) {
        let _ = writeln!(self.out.lock(), "{page},{}", if is_store { "store" } else { "load" });
    }

    /// Writes the rest.
    pub fn finish(&self) -> Result<()> {
        self.out.lock().flush().context("the trace of pages could not be written")
    }
}
