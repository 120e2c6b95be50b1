//! A key and its value as a line of text, or in one of the other forms in which they go in and out.

use std::io::{self, BufRead, Read, Write};

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vmio_kv::ValueReader;

/// How keys and values are written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Key, tab, value, with what is not printable escaped
    Text,
    /// An object a line; keys and values are UTF-8
    Json,
    /// Key, comma, value, quoted where that is needed
    Csv,
    /// Of each the lengths of key and value, four bytes each, little-endian, then both
    Binary,
}

/// A key and its value.
pub type Bytes = (Vec<u8>, Vec<u8>);

/// What is longer is no key or value, but no such file.
const LENGTH_MAX: u32 = 1 << 30;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pair {
    key: String,
    value: String,
}

#[derive(Serialize)]
struct Key {
    key: String,
}

impl Format {
    /// What `--json` and `--format` say.
    pub fn of(json: bool, format: Option<Format>) -> Self {
        format.unwrap_or(if json { Format::Json } else { Format::Text })
    }

    /// Writes a line.
    pub fn write(self, output: &mut impl Write, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        match self {
            Format::Text => writeln!(output, "{}\t{}", escaped(key), escaped(value))?,
            Format::Json => write_object(output, &Pair { key: utf8(key)?, value: utf8(value)? })?,
            Format::Csv => write_row(output, &[key, value])?,
            Format::Binary => write_parts(output, &[key, value])?,
        }
        Ok(())
    }

    /// Writes a line without a value.
    pub fn write_key(self, output: &mut impl Write, key: &[u8]) -> anyhow::Result<()> {
        match self {
            Format::Text => writeln!(output, "{}", escaped(key))?,
            Format::Json => write_object(output, &Key { key: utf8(key)? })?,
            Format::Csv => write_row(output, &[key])?,
            Format::Binary => write_parts(output, &[key])?,
        }
        Ok(())
    }

    /// Reads all that there is; an error says which line or pair it is about.
    pub fn read<'input>(
        self,
        input: impl BufRead + 'input,
    ) -> Box<dyn Iterator<Item = anyhow::Result<Bytes>> + 'input> {
        match self {
            Format::Text | Format::Json => Box::new(
                input
                    .lines()
                    .zip(1_u64..)
                    .map(move |(line, number)| self.read_line(&line?).with_context(|| format!("line {number}"))),
            ),
            Format::Csv => {
                let rows = csv::ReaderBuilder::new().has_headers(false).from_reader(input).into_byte_records();
                Box::new(rows.zip(1_u64..).map(|(row, number)| {
                    let row = row.with_context(|| format!("row {number}"))?;
                    match (row.get(0), row.get(1), row.len()) {
                        (Some(key), Some(value), 2) => Ok((key.to_vec(), value.to_vec())),
                        (_, _, fields) => bail!("row {number}: it has {fields} fields, not a key and a value"),
                    }
                }))
            }
            Format::Binary => {
                let mut input = input;
                let mut number = 0;
                Box::new(std::iter::from_fn(move || {
                    number += 1;
                    read_pair(&mut input).with_context(|| format!("pair {number}")).transpose()
                }))
            }
        }
    }

    fn read_line(self, line: &str) -> anyhow::Result<Bytes> {
        if self == Format::Json {
            let pair: Pair = serde_json::from_str(line)?;
            return Ok((pair.key.into_bytes(), pair.value.into_bytes()));
        }
        let Some((key, value)) = line.split_once('\t') else {
            bail!("there is no tab: a line is KEY, a tab, VALUE; --format reads other forms")
        };
        Ok((unescape(key)?, unescape(value)?))
    }
}

/// The next pair in binary form; none at the end.
fn read_pair(input: &mut impl BufRead) -> anyhow::Result<Option<Bytes>> {
    let Some((key, value_bytes)) = read_key(input)? else { return Ok(None) };
    Ok(Some((key, read_part(input, value_bytes)?)))
}

/// The next key in binary form, and how long the value is that follows; none at the end.
pub fn read_key(input: &mut impl BufRead) -> anyhow::Result<Option<(Vec<u8>, u32)>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut lengths = [0; 2];
    for length in &mut lengths {
        *length = u32::from_le_bytes(read_part(input, 4)?.as_slice().try_into()?);
        if *length > LENGTH_MAX {
            bail!("a length of {length}: this is not the form that `vmio kv scan --format binary` prints");
        }
    }
    Ok(Some((read_part(input, lengths[0])?, lengths[1])))
}

fn read_part(input: &mut impl BufRead, length: u32) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        bail!("it ends before it should");
    }
    Ok(bytes)
}

/// Writes a key and a value in binary form, the value as it is read.
pub fn write_streamed(output: &mut impl Write, key: &[u8], mut value: ValueReader) -> anyhow::Result<()> {
    for length in [key.len() as u64, value.len()] {
        output.write_all(&u32::try_from(length)?.to_le_bytes())?;
    }
    output.write_all(key)?;
    io::copy(&mut value, output)?;
    Ok(())
}

fn escaped(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\"")
}

fn utf8(bytes: &[u8]) -> anyhow::Result<String> {
    let text = std::str::from_utf8(bytes).map(str::to_owned);
    text.with_context(|| format!("{} is not UTF-8: go without --json", bytes.escape_ascii()))
}

fn write_object(output: &mut impl Write, object: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *output, object).map_err(io::Error::from)?;
    writeln!(output)
}

fn write_row(output: &mut impl Write, fields: &[&[u8]]) -> anyhow::Result<()> {
    let mut row = csv::WriterBuilder::new().buffer_capacity(256).from_writer(output);
    row.write_record(fields)?;
    Ok(row.flush()?)
}

fn write_parts(output: &mut impl Write, parts: &[&[u8]]) -> anyhow::Result<()> {
    for part in parts {
        output.write_all(&u32::try_from(part.len())?.to_le_bytes())?;
    }
    parts.iter().try_for_each(|part| Ok(output.write_all(part)?))
}

fn unescape(text: &str) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'\\' {
            bytes.push(byte);
            continue;
        }
        bytes.push(match rest.next() {
            Some(b't') => b'\t',
            Some(b'n') => b'\n',
            Some(b'r') => b'\r',
            Some(b'\\') => b'\\',
            Some(b'x') => {
                let digits =
                    [rest.next(), rest.next()].map(|digit| digit.and_then(|digit| char::from(digit).to_digit(16)));
                let [Some(high), Some(low)] = digits else { bail!("\\x needs two hexadecimal digits") };
                (high * 16 + low) as u8
            }
            Some(other) => bail!("\\{} is no escape: there are \\t \\n \\r \\\\ \\x00", char::from(other)),
            None => bail!("it ends with a backslash"),
        });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(format: Format, input: &[u8]) -> anyhow::Result<Vec<Bytes>> {
        format.read(input).collect()
    }

    proptest! {
        #[test]
        fn pairs_come_back(pairs: Vec<(Vec<u8>, Vec<u8>)>, texts: Vec<(String, String)>) {
            let failed = |error: anyhow::Error| TestCaseError::fail(format!("{error:#}"));
            let texts = texts.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
            let of = |format| if format == Format::Json { &texts } else { &pairs };
            for format in [Format::Text, Format::Json, Format::Csv, Format::Binary] {
                let mut written = Vec::new();
                for (key, value) in of(format) {
                    format.write(&mut written, key, value).map_err(failed)?;
                }
                prop_assert_eq!(&read(format, &written).map_err(failed)?, of(format), "{:?}", format);
            }
        }

        #[test]
        fn whatever_is_read_is_an_error_at_worst(input: Vec<u8>) {
            for format in [Format::Text, Format::Json, Format::Csv, Format::Binary] {
                let _ = read(format, &input);
            }
        }
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in ["no tab", "a\t\\q", "a\t\\x0", "a\t\\"] {
            assert!(read(Format::Text, line.as_bytes()).is_err(), "{line}");
        }
        assert!(read(Format::Json, b"{\"key\": \"a\"}").is_err());
        assert!(read(Format::Csv, b"a,b\na,b,c\n").is_err_and(|error| error.to_string().contains("row 2")));
        let cut_off = read(Format::Binary, &[1, 0, 0, 0, 5, 0, 0, 0, b'a', b'b']);
        assert!(cut_off.is_err_and(|error| error.to_string().contains("pair 1")));
    }
}
