//! `vmio kv load`: many keys at once.

use std::io::BufRead;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use vmio_kv::RegionHandle;

use super::line::Format;

/// Keys between two updates of the progress line.
const STEP: u64 = 4096;

/// Puts each key and value; returns how many there were. Those before one that is wrong have been put.
pub fn load(region: &RegionHandle, format: Format, input: impl BufRead) -> anyhow::Result<u64> {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{human_pos} keys, {per_sec}") {
        bar.set_style(style);
    }
    let mut keys = 0;
    for pair in format.read(input) {
        let (key, value) = pair?;
        region.put(&key, &value).with_context(|| format!("key {}", keys + 1))?;
        keys += 1;
        if keys % STEP == 0 {
            bar.set_position(keys);
        }
    }
    bar.finish_and_clear();
    Ok(keys)
}
