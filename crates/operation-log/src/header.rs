//! The front of a log: docs/formats/operation-log.md, "The header", in code.

use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::entry::{ENTRY_ALIGN_BYTES, Incarnation};
use crate::error::Damage;
use crate::identity::{FileIdentity, IdentityFields};

/// The version of the format.
pub(crate) const VERSION: u32 = 1;
/// Length of one of the two copies of the header.
pub(crate) const HEADER_BYTES: usize = 4096;
/// How many copies of the header there are.
pub(crate) const HEADER_COPIES: u64 = 2;
/// Where the entries begin: behind both copies of the header.
pub(crate) const ENTRIES_START_BYTES: u64 = HEADER_COPIES * HEADER_BYTES as u64;

const MAGIC: [u8; 8] = *b"vmiooplg";
/// Bytes in front of those that the checksum covers.
const UNCHECKED: usize = 16;
/// More generations than any log has.
const GENERATION_MAX: u64 = 1 << 52;

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct HeaderFields {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    generation: U64,
    incompatible: U64,
    compatible: U64,
    secret: U64,
    file_bytes: U64,
    log: IdentityFields,
    owner: U32,
    reserved: U32,
}

const _: () = assert!(size_of::<HeaderFields>() == 96);
const _: () = assert!(ENTRIES_START_BYTES.is_multiple_of(ENTRY_ALIGN_BYTES));

/// The contents of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// The incarnation whose entries count.
    pub(crate) incarnation: Incarnation,
    /// Length of the log's file.
    pub(crate) file_bytes: u64,
    /// The log's file itself: a copy of a log is no log.
    pub(crate) log: FileIdentity,
    /// The process that writes it, by its number.
    pub(crate) owner: u32,
}

impl Header {
    /// Where in the file the copy of this generation lies.
    pub(crate) fn offset(&self) -> u64 {
        self.incarnation.generation % HEADER_COPIES * HEADER_BYTES as u64
    }

    /// The bytes of a copy.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES];
        let mut fields = HeaderFields {
            magic: MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            generation: self.incarnation.generation.into(),
            incompatible: 0.into(),
            compatible: 0.into(),
            secret: self.incarnation.secret.into(),
            file_bytes: self.file_bytes.into(),
            log: self.log.into(),
            owner: self.owner.into(),
            reserved: 0.into(),
        };
        bytes[..size_of::<HeaderFields>()].copy_from_slice(fields.as_bytes());
        fields.checksum = crc32c::crc32c(&bytes[UNCHECKED..]).into();
        bytes[..size_of::<HeaderFields>()].copy_from_slice(fields.as_bytes());
        bytes
    }

    /// Reads a copy.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let too_short = || Damage::TooShort { bytes: bytes.len() as u64 };
        let (fields, _) = HeaderFields::read_from_prefix(bytes).map_err(|_| too_short())?;
        if bytes.len() != HEADER_BYTES {
            return Err(too_short());
        }
        if fields.magic != MAGIC {
            return Err(Damage::NoMagic);
        }
        if fields.version != VERSION {
            return Err(Damage::Version { found: fields.version.get(), known: VERSION });
        }
        if fields.checksum != crc32c::crc32c(&bytes[UNCHECKED..]) {
            return Err(Damage::HeaderChecksum);
        }
        if fields.incompatible != 0 {
            return Err(Damage::Features { flags: fields.incompatible.get() });
        }
        let (generation, file_bytes) = (fields.generation.get(), fields.file_bytes.get());
        if generation > GENERATION_MAX {
            return Err(Damage::HeaderField { field: "the generation", value: generation });
        }
        if file_bytes <= ENTRIES_START_BYTES || !file_bytes.is_multiple_of(ENTRY_ALIGN_BYTES) {
            return Err(Damage::HeaderField { field: "the length", value: file_bytes });
        }
        let incarnation = Incarnation { generation, secret: fields.secret.get() };
        Ok(Header { incarnation, file_bytes, log: fields.log.into(), owner: fields.owner.get() })
    }
}

/// The header that counts, and whether the other copy is whole as well.
pub(crate) fn newest(copies: [&[u8]; HEADER_COPIES as usize]) -> Result<(Header, bool), Damage> {
    match copies.map(Header::decode) {
        [Ok(first), Ok(second)] => {
            let newer = if first.incarnation.generation > second.incarnation.generation { first } else { second };
            Ok((newer, true))
        }
        [Ok(header), Err(_)] | [Err(_), Ok(header)] => Ok((header, false)),
        // The copy that was read further has the more precise error.
        [Err(Damage::NoMagic), Err(damage)] | [Err(damage), Err(_)] => Err(damage),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(generation: u64) -> Header {
        let log = FileIdentity { device: 1, inode: 2, birth: None };
        Header { incarnation: Incarnation { generation, secret: 7 }, file_bytes: 1 << 20, log, owner: 77 }
    }

    #[test]
    fn the_newer_copy_counts_and_a_torn_one_does_not() {
        let [old, new] = [4, 5].map(|generation| header(generation).encode());
        assert_eq!(newest([&old, &new]), Ok((header(5), true)));
        assert_eq!(newest([&new, &old]), Ok((header(5), true)));
        let mut torn = new.clone();
        torn[20] ^= 1;
        assert_eq!(newest([&old, &torn]), Ok((header(4), false)));
        assert_eq!(newest([&torn, &torn]), Err(Damage::HeaderChecksum));
        assert_eq!(newest([&[0; HEADER_BYTES], &torn]), Err(Damage::HeaderChecksum));
        assert_eq!(newest([&[0; HEADER_BYTES], &[0; HEADER_BYTES]]), Err(Damage::NoMagic));
        assert_eq!(newest([&[], &[]]), Err(Damage::TooShort { bytes: 0 }));
    }

    #[test]
    fn what_a_newer_program_wrote_is_refused() {
        let mut newer = header(1).encode();
        newer[8] = 9;
        assert_eq!(Header::decode(&newer), Err(Damage::Version { found: 9, known: VERSION }));
        let mut features = header(1).encode();
        features[24] = 4;
        let checksum = crc32c::crc32c(&features[UNCHECKED..]).to_le_bytes();
        features[12..16].copy_from_slice(&checksum);
        assert_eq!(Header::decode(&features), Err(Damage::Features { flags: 4 }));
    }
}
