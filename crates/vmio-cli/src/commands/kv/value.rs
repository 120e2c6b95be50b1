//! Reads a key's value from a file, and writes it to one.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

use anyhow::{Context, bail};
use vmio_kv::{KeyspaceHandle, VALUE_LENGTH_MAX, ValueReader};
use vmio_report::new_file::NewFile;

/// Parses FROM..TO.
pub fn parse_range(text: &str) -> anyhow::Result<Range<u64>> {
    let (from, to) = text.split_once("..").context("a range is FROM..TO")?;
    let number = |text: &str, default| if text.is_empty() { Ok(default) } else { text.parse() };
    let range = number(from, 0)?..number(to, u64::MAX)?;
    if range.start > range.end {
        bail!("it begins after its end");
    }
    Ok(range)
}

/// Puts the contents of a file, or of standard input.
pub fn put_file(keyspace: &KeyspaceHandle, key: &[u8], file: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot read {}", file.display());
    let mut source = if file == Path::new("-") {
        File::from(io::stdin().as_fd().try_clone_to_owned()?)
    } else {
        File::open(file).with_context(failed)?
    };
    let metadata = source.metadata()?;
    if metadata.is_file() {
        let left = metadata.len().saturating_sub(source.stream_position()?);
        keyspace.put_stream(key, left, source)?;
        return Ok(());
    }
    // A pipe's data has no known length before its end.
    let mut value = Vec::new();
    source.take(VALUE_LENGTH_MAX + 1).read_to_end(&mut value).with_context(failed)?;
    Ok(keyspace.put(key, &value)?)
}

/// Writes a range of a value.
pub fn write(mut value: ValueReader, range: Range<u64>, output: &mut impl Write) -> anyhow::Result<()> {
    value.seek(SeekFrom::Start(range.start))?;
    // Whole pieces go into the buffer at once.
    let mut output = io::BufWriter::with_capacity(1 << 20, output);
    io::copy(&mut value.take(range.end - range.start), &mut output)?;
    Ok(output.flush()?)
}

/// Writes a range of a value to a file that appears once it is complete; the file must not be the store itself.
pub fn write_file(value: ValueReader, range: Range<u64>, file: &Path, store: &Path) -> anyhow::Result<()> {
    let output = NewFile::create(file, &[store])?.remove_if_interrupted()?;
    write(value, range, &mut output.file())?;
    output.keep()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed() {
        let read = |text: &str| parse_range(text).ok();
        assert_eq!(read("3..9"), Some(3..9));
        assert_eq!(read(".."), Some(0..u64::MAX));
        assert_eq!(read("7.."), Some(7..u64::MAX));
        assert!(["", "3", "9..3", "a..b", "-1..3"].into_iter().all(|text| read(text).is_none()));
    }
}
