//! `vmio kv load`: puts many keys at once.

use std::io::BufRead;

use anyhow::Context;
use indicatif::{ProgressBar, ProgressStyle};
use vmio_kv::KeyspaceHandle;
use vmio_report::progress::with_rate;

use super::line::{Form, Place, Row, read_key};

/// Rows between two updates of the progress line.
const STEP: u64 = 4096;

/// Result of a load.
#[derive(Default)]
pub struct Loaded {
    /// Rows that were put.
    pub rows: u64,
    /// The first line that ended with a carriage return, and the number of such lines.
    pub with_cr: Option<(Place, u64)>,
}

impl Loaded {
    fn count(&mut self, bar: &ProgressBar) {
        self.rows += 1;
        if self.rows.is_multiple_of(STEP) {
            bar.set_position(self.rows);
        }
    }
}

/// Puts each key and value. The rows before a bad one stay, and count.
pub fn load(keyspace: &KeyspaceHandle, form: Form, input: impl BufRead) -> (Loaded, anyhow::Result<()>) {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{human_pos} keys, {per_s}") {
        bar.set_style(with_rate(style));
    }
    let mut loaded = Loaded::default();
    let done = match form.is_binary() {
        true => load_streamed(keyspace, input, || loaded.count(&bar)),
        false => form.read(input).try_for_each(|row| {
            let Row { place, pair: (key, value), has_cr } = row?;
            keyspace.put(&key, &value).with_context(|| place.to_string())?;
            if has_cr {
                loaded.with_cr.get_or_insert((place, 0)).1 += 1;
            }
            loaded.count(&bar);
            Ok(())
        }),
    };
    bar.finish_and_clear();
    (loaded, done)
}

/// Loads the binary format. It gives a value's length beforehand, so this streams the values.
fn load_streamed(keyspace: &KeyspaceHandle, mut input: impl BufRead, mut count: impl FnMut()) -> anyhow::Result<()> {
    for number in 1_u64.. {
        let place = || Place::Pair(number).to_string();
        let Some((key, length)) = read_key(&mut input).with_context(place)? else { break };
        keyspace.put_stream(&key, length.into(), &mut input).with_context(place)?;
        count();
    }
    Ok(())
}
