//! `vmio kv scan`: prints keys of a range in order.

use std::ffi::OsString;
use std::io::Write;
use std::ops::Bound;

use clap::Args;
use vmio_kv::{KeyRange, KeyspaceHandle};

use super::encoding::EncodingArgs;
use super::line::{Form, Format, write_streamed};

#[derive(Args)]
pub struct ScanArgs {
    /// Print keys from this one on
    #[arg(long, value_name = "KEY")]
    from: Option<OsString>,
    /// Print keys before this one
    #[arg(long, value_name = "KEY")]
    to: Option<OsString>,
    /// Print keys with this prefix
    #[arg(long, conflicts_with_all = ["from", "to"])]
    prefix: Option<OsString>,
    /// Print the last key first
    #[arg(long)]
    reverse: bool,
    /// Print at most this many keys
    #[arg(long)]
    limit: Option<usize>,
    /// Print keys only; values are not read
    #[arg(long)]
    keys_only: bool,
    /// Print JSON objects
    #[arg(long)]
    json: bool,
    /// Print in this format
    #[arg(long, value_enum, conflicts_with = "json")]
    format: Option<Format>,
    #[command(flatten)]
    encoding: EncodingArgs,
}

impl ScanArgs {
    fn range(&self) -> anyhow::Result<KeyRange> {
        let encoding = self.encoding.encoding();
        let key = |argument: &Option<OsString>| argument.as_deref().map(|key| encoding.key(key)).transpose();
        if let Some(prefix) = key(&self.prefix)? {
            return Ok(KeyRange::prefix(prefix));
        }
        let from = key(&self.from)?.map_or(Bound::Unbounded, Bound::Included);
        Ok((from, key(&self.to)?.map_or(Bound::Unbounded, Bound::Excluded)).into())
    }

    /// Prints the keys and values.
    pub fn run(&self, keyspace: &KeyspaceHandle, output: &mut impl Write) -> anyhow::Result<()> {
        let form = Form::of(self.json, self.format, self.encoding)?;
        let mut scan = keyspace.scan(self.range()?);
        let limit = self.limit.unwrap_or(usize::MAX);
        if form.is_binary() && !self.keys_only {
            let mut readers = scan.readers();
            for _ in 0..limit {
                let Some(found) = (if self.reverse { readers.next_back() } else { readers.next() }) else { break };
                let (key, value) = found?;
                write_streamed(output, &key, value)?;
            }
            return Ok(());
        }
        if self.keys_only {
            let mut keys = scan.keys();
            for _ in 0..limit {
                let Some(key) = (if self.reverse { keys.next_back() } else { keys.next() }) else { break };
                form.write_key(output, &key?)?;
            }
            return Ok(());
        }
        for _ in 0..limit {
            let Some(found) = (if self.reverse { scan.next_back() } else { scan.next() }) else { break };
            let (key, value) = found?;
            form.write(output, &key, &value)?;
        }
        Ok(())
    }
}
