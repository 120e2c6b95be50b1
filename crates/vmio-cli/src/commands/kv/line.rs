//! Reads and writes keys and values as lines of text, or in one of the other formats.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::io::{self, BufRead, Read, Write};

use anyhow::{Context, anyhow, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vmio_kv::ValueReader;

use super::encoding::{Encoding, EncodingArgs};

/// The format of keys, values and pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Key, tab, value; bytes that are not printable are escaped
    Text,
    /// A JSON object for each line; keys and values are UTF-8
    Json,
    /// Key, comma, value, quoted where necessary
    Csv,
    /// The lengths of key and value, four bytes each, little-endian, then both
    Binary,
}

/// The form in which keys and values are written and read.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    format: Format,
    encoding: Encoding,
    /// Lines of text end with a carriage return and a line feed.
    ends_with_cr: bool,
}

/// A key and its value.
pub type Bytes = (Vec<u8>, Vec<u8>);

/// The place of a pair in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Line(u64),
    Pair(u64),
}

impl Display for Place {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(number) => write!(out, "line {number}"),
            Place::Pair(number) => write!(out, "pair {number}"),
        }
    }
}

/// A pair and its place in the input.
pub struct Row {
    pub place: Place,
    pub pair: Bytes,
    /// Whether the line ended with a carriage return, which counts as part of the value.
    pub has_cr: bool,
}

/// A greater length means that the input has another format.
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

impl Form {
    /// The form that `--json`, `--format`, `--hex` and `--base64` choose.
    pub fn of(json: bool, format: Option<Format>, encoding: EncodingArgs) -> anyhow::Result<Self> {
        let format = format.unwrap_or(if json { Format::Json } else { Format::Text });
        let encoding = encoding.encoding();
        if format == Format::Binary && encoding != Encoding::Escaped {
            bail!("--format binary has the bytes themselves: neither --hex nor --base64 goes with it");
        }
        Ok(Form { format, encoding, ends_with_cr: false })
    }

    /// The same, but lines end as on Windows.
    pub fn with_cr(self, ends_with_cr: bool) -> Self {
        Form { ends_with_cr, ..self }
    }

    pub fn is_binary(self) -> bool {
        self.format == Format::Binary
    }

    /// Writes a line.
    pub fn write(self, output: &mut impl Write, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        match self.format {
            Format::Text => writeln!(output, "{}\t{}", self.encoding.encode(key), self.encoding.encode(value))?,
            Format::Json => write_object(output, &Pair { key: self.text(key)?, value: self.text(value)? })?,
            Format::Csv => write_row(output, &[&self.field(key), &self.field(value)])?,
            Format::Binary => write_parts(output, &[key, value])?,
        }
        Ok(())
    }

    /// Writes a line without a value.
    pub fn write_key(self, output: &mut impl Write, key: &[u8]) -> anyhow::Result<()> {
        match self.format {
            Format::Text => writeln!(output, "{}", self.encoding.encode(key))?,
            Format::Json => write_object(output, &Key { key: self.text(key)? })?,
            Format::Csv => write_row(output, &[&self.field(key)])?,
            Format::Binary => write_parts(output, &[key])?,
        }
        Ok(())
    }

    /// Bytes as a string of an object: encoded, or unchanged if they are UTF-8 and no encoding was given.
    fn text(self, bytes: &[u8]) -> anyhow::Result<String> {
        if self.encoding != Encoding::Escaped {
            return Ok(self.encoding.encode(bytes));
        }
        let text = std::str::from_utf8(bytes).map(str::to_owned);
        text.with_context(|| {
            let bytes = self.encoding.encode(bytes);
            format!("{bytes} is not UTF-8: go without --json, or with --hex or --base64")
        })
    }

    /// Decodes an object's string or a row's field.
    fn bytes(self, text: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        if self.encoding == Encoding::Escaped { Ok(text) } else { self.encoding.decode(&text) }
    }

    fn field(self, bytes: &[u8]) -> Cow<'_, [u8]> {
        match self.encoding {
            Encoding::Escaped => bytes.into(),
            encoding => encoding.encode(bytes).into_bytes().into(),
        }
    }

    /// Reads all pairs; an error names the line or pair.
    pub fn read<'input>(
        self,
        mut input: impl BufRead + 'input,
    ) -> Box<dyn Iterator<Item = anyhow::Result<Row>> + 'input> {
        match self.format {
            Format::Text | Format::Json => {
                let mut number = 0;
                Box::new(std::iter::from_fn(move || {
                    number += 1;
                    let place = Place::Line(number);
                    let row = self.read_line(&mut input, place);
                    row.with_context(|| place.to_string()).transpose()
                }))
            }
            Format::Csv => {
                let reader = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(input);
                Box::new(reader.into_byte_records().map(move |row| {
                    let row = row?;
                    let place = Place::Line(row.position().map_or(0, |position| position.line()));
                    self.pair_of(&row).map(|pair| Row { place, pair, has_cr: false }).with_context(|| place.to_string())
                }))
            }
            Format::Binary => {
                let mut number = 0;
                Box::new(std::iter::from_fn(move || {
                    number += 1;
                    let place = Place::Pair(number);
                    let pair = read_pair(&mut input).with_context(|| place.to_string()).transpose()?;
                    Some(pair.map(|pair| Row { place, pair, has_cr: false }))
                }))
            }
        }
    }

    /// Reads the next line; `None` at the end.
    fn read_line(self, input: &mut impl BufRead, place: Place) -> anyhow::Result<Option<Row>> {
        let mut line = Vec::new();
        if input.read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        let line = line.strip_suffix(b"\n").unwrap_or(&line);
        if self.format == Format::Json {
            let pair: Pair = serde_json::from_slice(line).map_err(without_line)?;
            let pair = (self.bytes(pair.key.into_bytes())?, self.bytes(pair.value.into_bytes())?);
            return Ok(Some(Row { place, pair, has_cr: false }));
        }
        let (line, has_cr) = match line.strip_suffix(b"\r") {
            Some(line) if self.ends_with_cr => (line, false),
            without => (line, without.is_some()),
        };
        let Some(tab) = line.iter().position(|byte| *byte == b'\t') else {
            bail!("there is no tab: a line is KEY, a tab, VALUE; --format reads other formats")
        };
        let pair = (self.encoding.decode(&line[..tab])?, self.encoding.decode(&line[tab + 1..])?);
        Ok(Some(Row { place, pair, has_cr }))
    }

    fn pair_of(self, row: &csv::ByteRecord) -> anyhow::Result<Bytes> {
        match (row.get(0), row.get(1), row.len()) {
            (Some(key), Some(value), 2) => Ok((self.bytes(key.to_vec())?, self.bytes(value.to_vec())?)),
            (_, _, fields) => bail!("it has {fields} fields, not a key and a value"),
        }
    }
}

/// The error of an object with its column; the line in it would always be 1.
fn without_line(error: serde_json::Error) -> anyhow::Error {
    let (line, column, text) = (error.line(), error.column(), error.to_string());
    match text.strip_suffix(&format!(" at line {line} column {column}")) {
        Some(what) => anyhow!("{what}, at column {column}"),
        None => error.into(),
    }
}

/// Reads the next pair in binary form; `None` at the end.
fn read_pair(input: &mut impl BufRead) -> anyhow::Result<Option<Bytes>> {
    let Some((key, value_bytes)) = read_key(input)? else { return Ok(None) };
    Ok(Some((key, read_part(input, value_bytes)?)))
}

/// Reads the next key in binary form, and the length of the value after it; `None` at the end.
pub fn read_key(input: &mut impl BufRead) -> anyhow::Result<Option<(Vec<u8>, u32)>> {
    if input.fill_buf()?.is_empty() {
        return Ok(None);
    }
    let mut lengths = [0; 2];
    for length in &mut lengths {
        *length = u32::from_le_bytes(read_part(input, 4)?.as_slice().try_into()?);
        if *length > LENGTH_MAX {
            bail!("a length of {length}: this is not the output of `vmio kv scan --format binary`");
        }
    }
    Ok(Some((read_part(input, lengths[0])?, lengths[1])))
}

fn read_part(input: &mut impl BufRead, length: u32) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length.into()).read_to_end(&mut bytes)?;
    if bytes.len() != length as usize {
        bail!("the input ends within it");
    }
    Ok(bytes)
}

/// Writes a key and a value in binary form; the value is streamed.
pub fn write_streamed(output: &mut impl Write, key: &[u8], mut value: ValueReader) -> anyhow::Result<()> {
    for length in [key.len() as u64, value.len()] {
        output.write_all(&u32::try_from(length)?.to_le_bytes())?;
    }
    output.write_all(key)?;
    io::copy(&mut value, output)?;
    Ok(())
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMATS: [Format; 4] = [Format::Text, Format::Json, Format::Csv, Format::Binary];

    fn forms() -> impl Iterator<Item = Form> {
        let form = |format, encoding| Form { format, encoding, ends_with_cr: false };
        let all = [Encoding::Escaped, Encoding::Hex, Encoding::Base64];
        FORMATS.into_iter().flat_map(move |format| all.map(|encoding| form(format, encoding)))
    }

    fn read(form: Form, input: &[u8]) -> anyhow::Result<Vec<Bytes>> {
        form.read(input).map(|row| row.map(|row| row.pair)).collect()
    }

    fn text(ends_with_cr: bool) -> Form {
        Form { format: Format::Text, encoding: Encoding::Escaped, ends_with_cr }
    }

    proptest! {
        #[test]
        fn written_pairs_are_read_back(pairs: Vec<(Vec<u8>, Vec<u8>)>, texts: Vec<(String, String)>) {
            let failed = |error: anyhow::Error| TestCaseError::fail(format!("{error:#}"));
            let texts = texts.into_iter().map(|(key, value)| (key.into_bytes(), value.into_bytes())).collect();
            for form in forms() {
                let needs_text = form.format == Format::Json && form.encoding == Encoding::Escaped;
                let pairs = if needs_text { &texts } else { &pairs };
                let mut written = Vec::new();
                for (key, value) in pairs {
                    form.write(&mut written, key, value).map_err(failed)?;
                }
                prop_assert_eq!(&read(form, &written).map_err(failed)?, pairs, "{:?}", form);
            }
        }

        #[test]
        fn reading_never_panics(input: Vec<u8>) {
            for form in forms() {
                let _ = read(form, &input);
            }
        }
    }

    #[test]
    fn bad_lines_are_refused_and_named_once() {
        for line in ["no tab", "a\t\\q", "a\t\\x0", "a\t\\"] {
            assert!(read(text(false), line.as_bytes()).is_err(), "{line}");
        }
        let form = |format| Form { format, ..text(false) };
        let said = |format, input: &[u8]| format!("{:#}", read(form(format), input).expect_err("it is bad"));
        assert_eq!(
            said(Format::Text, b"a\tb\nc\t\\\n"),
            "line 2: it ends with a single backslash; write \\\\ for a backslash"
        );
        assert_eq!(
            said(Format::Json, b"{\"key\":\"a\",\"value\":\"\"}\nnonsense"),
            "line 2: expected ident, at column 2"
        );
        assert!(said(Format::Json, b"{\"key\": \"a\"}").starts_with("line 1: missing field `value`, at column"));
        // The first row has two lines.
        assert_eq!(said(Format::Csv, b"a,\"b\n\"\na,b,c\n"), "line 3: it has 3 fields, not a key and a value");
        let cut_off = said(Format::Binary, &[1, 0, 0, 0, 5, 0, 0, 0, b'a', b'b']);
        assert_eq!(cut_off, "pair 1: the input ends within it");
    }

    #[test]
    fn a_carriage_return_belongs_to_the_value_unless_lines_end_with_one() {
        let read = |form: Form, input: &[u8]| -> Vec<(Vec<u8>, bool)> {
            form.read(input).map(|row| row.map(|row| (row.pair.1, row.has_cr)).expect("sound")).collect()
        };
        let input = b"a\t1\r\nb\t2\nc\t3\\r\nd\t\r\r\n";
        let values = |values: [&[u8]; 4], has_cr: [bool; 4]| -> Vec<(Vec<u8>, bool)> {
            values.into_iter().map(<[u8]>::to_vec).zip(has_cr).collect()
        };
        assert_eq!(read(text(false), input), values([b"1\r", b"2", b"3\r", b"\r\r"], [true, false, false, true]));
        assert_eq!(read(text(true), input), values([b"1", b"2", b"3\r", b"\r"], [false; 4]));
    }
}
