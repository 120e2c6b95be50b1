//! Encodings of bytes as text, on the command line and in lines.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use anyhow::{Context, bail};
use clap::Args;

/// The encoding of keys and values.
#[derive(Args, Clone, Copy)]
pub struct EncodingArgs {
    /// Read and print keys and values as hexadecimal digits
    #[arg(long, conflicts_with = "base64")]
    hex: bool,
    /// Read and print keys and values in base64
    #[arg(long)]
    base64: bool,
}

impl EncodingArgs {
    pub fn encoding(self) -> Encoding {
        match (self.hex, self.base64) {
            (true, _) => Encoding::Hex,
            (_, true) => Encoding::Base64,
            _ => Encoding::Escaped,
        }
    }
}

/// An encoding of bytes as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Bytes that are not printable ASCII as a backslash and a letter, or `\x` and two digits
    Escaped,
    /// Two hexadecimal digits for each byte
    Hex,
    /// The alphabet with + and /, padded with =
    Base64,
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const NO_BASE64: &str = "this is not base64: letters are A-Z a-z 0-9 + /, padded with = to a multiple of four";

impl Encoding {
    /// Encodes bytes as text without tabs and line ends.
    pub fn encode(self, bytes: &[u8]) -> String {
        match self {
            Encoding::Escaped => bytes.escape_ascii().to_string().replace("\\'", "'").replace("\\\"", "\""),
            Encoding::Hex => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
            Encoding::Base64 => bytes.chunks(3).flat_map(base64_of).collect(),
        }
    }

    /// Decodes a text. Bytes that are not ASCII stand for themselves where they are not escaped.
    pub fn decode(self, text: &[u8]) -> anyhow::Result<Vec<u8>> {
        match self {
            Encoding::Escaped => unescaped(text),
            Encoding::Hex => from_hex(text),
            Encoding::Base64 => from_base64(text),
        }
    }

    /// Decodes an argument.
    pub fn key(self, argument: &OsStr) -> anyhow::Result<Vec<u8>> {
        let key = self.decode(argument.as_bytes());
        key.with_context(|| format!("the key {:?}", argument.to_string_lossy()))
    }
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

fn unescaped(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.iter().copied();
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
            Some(b'x') => match [rest.next(), rest.next()].map(|byte| byte.and_then(digit)) {
                [Some(high), Some(low)] => high * 16 + low,
                _ => bail!("\\x needs two hexadecimal digits"),
            },
            Some(other) => {
                bail!("\\{} is no escape: the escapes are \\t \\n \\r \\\\ \\x00", [other].escape_ascii())
            }
            None => bail!("it ends with a single backslash; write \\\\ for a backslash"),
        });
    }
    Ok(bytes)
}

fn from_hex(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    let byte = |pair: &[u8]| match pair.iter().map(|byte| digit(*byte)).collect::<Vec<_>>()[..] {
        [Some(high), Some(low)] => Ok(high * 16 + low),
        _ => bail!("these are not pairs of hexadecimal digits"),
    };
    text.chunks(2).map(byte).collect()
}

fn base64_of(bytes: &[u8]) -> impl Iterator<Item = char> + use<> {
    let word = [16, 8, 0].into_iter().zip(bytes).fold(0, |word, (shift, byte)| word | u32::from(*byte) << shift);
    let letters = bytes.len() + 1;
    (0..4).map(move |place| match place < letters {
        true => char::from(BASE64[(word >> (18 - 6 * place)) as usize % 64]),
        false => '=',
    })
}

fn from_base64(text: &[u8]) -> anyhow::Result<Vec<u8>> {
    if !text.len().is_multiple_of(4) {
        bail!(NO_BASE64);
    }
    let letters = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 2);
    for group in letters.chunks(4) {
        let place = |letter: &u8| BASE64.iter().position(|other| other == letter);
        let numbers: Option<Vec<usize>> = group.iter().map(place).collect();
        let numbers = numbers.filter(|numbers| numbers.len() > 1).context(NO_BASE64)?;
        let word = [18, 12, 6, 0].into_iter().zip(&numbers).fold(0, |word, (shift, number)| word | number << shift);
        let whole = numbers.len() - 1;
        if word & ((1 << (24 - 8 * whole)) - 1) != 0 {
            bail!("this is not base64: the last letter has bits that belong to no byte");
        }
        bytes.extend([16, 8, 0].into_iter().take(whole).map(|shift| (word >> shift) as u8));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Encoding; 3] = [Encoding::Escaped, Encoding::Hex, Encoding::Base64];

    proptest! {
        #[test]
        fn encoded_bytes_are_decoded(bytes: Vec<u8>) {
            for encoding in ALL {
                let text = encoding.encode(&bytes);
                prop_assert!(text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' '), "{}", text);
                prop_assert_eq!(&encoding.decode(text.as_bytes()).unwrap(), &bytes, "{:?} {}", encoding, text);
            }
        }

        #[test]
        fn decoding_never_panics(text: Vec<u8>, letters in "[A-Za-z0-9+/]{0,9}={0,3}") {
            for encoding in ALL {
                let _ = encoding.decode(&text);
            }
            if let Ok(bytes) = Encoding::Base64.decode(letters.as_bytes()) {
                prop_assert_eq!(Encoding::Base64.encode(&bytes), letters);
            }
        }
    }

    #[test]
    fn texts_are_as_other_programs_write_them() {
        let known = [
            (&b""[..], "", ""),
            (b"f", "66", "Zg=="),
            (b"fo", "666f", "Zm8="),
            (b"foobar", "666f6f626172", "Zm9vYmFy"),
        ];
        for (bytes, hex, base64) in known {
            assert_eq!((Encoding::Hex.encode(bytes), Encoding::Base64.encode(bytes)), (hex.into(), base64.into()));
        }
        assert_eq!(Encoding::Escaped.encode(b"\xff\0\t'\"\\"), "\\xff\\x00\\t'\"\\\\");
        assert_eq!(Encoding::Hex.decode(b"FFfe").unwrap(), [0xff, 0xfe]);
        for wrong in ["\\q", "\\x0", "\\", "\\xg0"] {
            assert!(Encoding::Escaped.decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(Encoding::Hex.decode(b"abc").is_err() && Encoding::Hex.decode(b"0g").is_err());
        assert!(
            ["Zg", "Zg=", "=", "==", "====", "Z===", "Zh==", "Z-=="]
                .iter()
                .all(|text| Encoding::Base64.decode(text.as_bytes()).is_err())
        );
    }
}
