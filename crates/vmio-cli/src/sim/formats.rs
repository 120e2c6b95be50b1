//! The formats of traces. Each reader gives the touched pages or objects, in order. A trace may come from anywhere: if it breaks its
//! format, the error says where.

use std::io::{self, BufRead, Read};

use anyhow::{Context, bail, ensure};

/// The length of a page.
pub const PAGE_BYTES: u64 = vmio::PAGE_BYTES as u64;
/// The longest access in the MSR format.
const ACCESS_BYTES_MAX: u64 = 1 << 30;
/// The length of a record of oracleGeneral: time u32, object u64, size u32, next access i64, all little-endian.
const RECORD_BYTES: usize = 24;

/// A page number on each line, possibly with further fields behind a comma. Lines that begin with # are comments.
pub fn pages(file: impl BufRead, mut touch: impl FnMut(u64)) -> anyhow::Result<()> {
    each_line(file, |text| {
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        let page = text.split_once(',').map_or(text, |(page, _)| page.trim_end());
        touch(page.parse().with_context(|| format!("{page:?} is not a page number"))?);
        Ok(())
    })
}

/// Comma-separated: time, host, disk, Read or Write, offset and length in bytes (MSR Cambridge).
pub fn msr(file: impl BufRead, mut touch: impl FnMut(u64)) -> anyhow::Result<()> {
    each_line(file, |line| {
        let mut fields = line.split(',').skip(3);
        let (Some(kind), Some(offset), Some(len)) = (fields.next(), fields.next(), fields.next()) else {
            bail!("{line:?} has fewer than six fields")
        };
        ensure!(matches!(kind, "Read" | "Write"), "{kind:?} is neither Read nor Write");
        let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} in {line:?}"));
        let (offset, len) = (number(offset)?, number(len)?);
        ensure!(len <= ACCESS_BYTES_MAX, "{line:?} is more than 1 GiB long");
        let end = offset.checked_add(len.max(1)).with_context(|| format!("{line:?} ends behind 2^64"))?;
        (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).for_each(&mut touch);
        Ok(())
    })
}

/// Records of libCacheSim's oracleGeneral, uncompressed; gives their objects.
pub fn oracle_general(mut file: impl Read, mut touch: impl FnMut(u64)) -> anyhow::Result<()> {
    let mut record = [0; RECORD_BYTES];
    for number in 1_u64.. {
        let mut filled = 0;
        while filled < RECORD_BYTES {
            match file.read(&mut record[filled..]) {
                Ok(0) if filled == 0 => return Ok(()),
                Ok(0) => bail!("record {number} has {filled} of {RECORD_BYTES} bytes"),
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut object = [0; 8];
        object.copy_from_slice(&record[4..12]);
        touch(u64::from_le_bytes(object));
    }
    Ok(())
}

fn each_line(file: impl BufRead, mut take: impl FnMut(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    for (line, text) in file.lines().enumerate() {
        text.map_err(anyhow::Error::from)
            .and_then(|text| take(text.trim()))
            .with_context(|| format!("line {}", line + 1))?;
    }
    Ok(())
}
