//! A key and its value as a line of text.

use std::io::{self, Write};

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// How lines are written and read.
#[derive(Clone, Copy)]
pub enum Format {
    /// Key, tab, value, with what is not printable escaped.
    Text,
    /// An object.
    Json,
}

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
    pub fn of(json: bool) -> Self {
        if json { Format::Json } else { Format::Text }
    }

    /// Writes a line.
    pub fn write(self, output: &mut impl Write, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        match self {
            Format::Text => writeln!(output, "{}\t{}", escaped(key), escaped(value))?,
            Format::Json => write_object(output, &Pair { key: utf8(key)?, value: utf8(value)? })?,
        }
        Ok(())
    }

    /// Writes a line without a value.
    pub fn write_key(self, output: &mut impl Write, key: &[u8]) -> anyhow::Result<()> {
        match self {
            Format::Text => writeln!(output, "{}", escaped(key))?,
            Format::Json => write_object(output, &Key { key: utf8(key)? })?,
        }
        Ok(())
    }

    /// Reads a line.
    pub fn read(self, line: &str) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
        match self {
            Format::Text => {
                let Some((key, value)) = line.split_once('\t') else { bail!("there is no tab") };
                Ok((unescape(key)?, unescape(value)?))
            }
            Format::Json => {
                let pair: Pair = serde_json::from_str(line)?;
                Ok((pair.key.into_bytes(), pair.value.into_bytes()))
            }
        }
    }
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

    proptest! {
        #[test]
        fn a_line_comes_back(key: Vec<u8>, value: Vec<u8>) {
            let mut line = Vec::new();
            Format::Text.write(&mut line, &key, &value).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let line = String::from_utf8(line).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(line.lines().count(), 1);
            let read = Format::Text.read(line.trim_end_matches('\n')).map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(read, (key, value));
        }
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in ["no tab", "a\t\\q", "a\t\\x0", "a\t\\"] {
            assert!(Format::Text.read(line).is_err(), "{line}");
        }
        assert!(Format::Json.read("{\"key\": \"a\"}").is_err());
    }
}
