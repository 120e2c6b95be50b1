//! `vmio kv load`: many keys at once.

use std::io::BufRead;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use vmio_kv::RegionHandle;

use super::line::{Format, read_key};
use crate::progress::with_rate;

/// Keys between two updates of the progress line.
const STEP: u64 = 4096;

/// Puts each key and value; returns how many there were. Those before one that is wrong have been put.
pub fn load(region: &RegionHandle, format: Format, input: impl BufRead) -> anyhow::Result<u64> {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{human_pos} keys, {per_s}") {
        bar.set_style(with_rate(style));
    }
    let mut keys = 0;
    let mut count = || {
        keys += 1;
        if keys % STEP == 0 {
            bar.set_position(keys);
        }
    };
    if format == Format::Binary {
        load_streamed(region, input, &mut count)?;
    } else {
        for (pair, number) in format.read(input).zip(1_u64..) {
            let (key, value) = pair?;
            region.put(&key, &value).with_context(|| format!("key {number}"))?;
            count();
        }
    }
    bar.finish_and_clear();
    Ok(keys)
}

/// The binary form says beforehand how long a value is: it goes on as it comes.
fn load_streamed(region: &RegionHandle, mut input: impl BufRead, count: &mut impl FnMut()) -> anyhow::Result<()> {
    for number in 1_u64.. {
        let Some((key, length)) = read_key(&mut input).with_context(|| format!("pair {number}"))? else { break };
        region.put_stream(&key, length.into(), &mut input).with_context(|| format!("pair {number}"))?;
        count();
    }
    Ok(())
}
