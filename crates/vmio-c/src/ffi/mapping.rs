//! A file as a range of addresses.

use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::path::Path;
use std::ptr;

use vmio::backing::FileBacking;
use vmio::{Access, Mapping, MappingOptions, OnReadError, Unit};
use zerocopy::FromZeros;

use crate::failure::{Failure, contain, report};
use crate::ffi::cache::{frames, unknown, vmio_cache};
use crate::ffi::journal::vmio_journal;
use crate::ffi::memory::{given, hand_out, read_options, read_path};
use crate::status::vmio_status;

/// Loads and stores.
pub const VMIO_READ_WRITE: u32 = 0;
/// Loads only.
pub const VMIO_READ_ONLY: u32 = 1;

/// The file must exist.
pub const VMIO_CREATE_NEVER: u32 = 0;
/// A file that does not exist is made, `len` zeros long; one that exists stays as it is.
pub const VMIO_CREATE_IF_MISSING: u32 = 1;
/// Makes the file, or discards its contents; it is `len` zeros long.
pub const VMIO_CREATE_EMPTY: u32 = 2;

/// A load of a page that cannot be read is a SIGBUS.
pub const VMIO_ON_READ_ERROR_SIGBUS: u32 = 0;
/// A load of such a page finds it filled with the 8 bytes of `poison`; vmio_take_read_error returns the error.
pub const VMIO_ON_READ_ERROR_POISON: u32 = 1;

/// Added to a priority from 0 (keep) to 255 (evict first) in vmio_open_options, where 0 alone is the default, 128.
pub const VMIO_PRIORITY_SET: u32 = 256;

/// As the length of a range: up to the end of the mapping.
pub const VMIO_TO_END: u64 = u64::MAX;

/// A file as a range of addresses, of which the cache keeps the useful part in memory.
pub struct vmio_mapping(pub(super) Mapping);

/// Options of a mapping. Zero is the default of every field but `size`.
#[derive(Clone, Copy, FromZeros)]
#[repr(C)]
pub struct vmio_open_options {
    /// sizeof(struct vmio_open_options).
    pub size: usize,
    /// The length of a file that is made (see `create`).
    pub len: u64,
    /// Address space to reserve, so that the file can grow to this length in place: see vmio_set_len. Costs no memory;
    /// at least the length of the file, rounded up to 1 GiB.
    pub reserve_bytes: u64,
    /// VMIO_READ_WRITE or VMIO_READ_ONLY.
    pub access: u32,
    /// Whether the file is made: VMIO_CREATE_*.
    pub create: u32,
    /// VMIO_PRIORITY_SET + the priority of the whole mapping, 0 (keep) to 255 (evict first).
    pub priority: u32,
    /// The memory that holds the resident pages: VMIO_FRAMES_*.
    pub frames: u32,
    /// How much is read at a miss, and kept or given up together: 4096 (the default), 16384 or 65536 bytes.
    pub unit_bytes: u32,
    /// The result of a load of a page that cannot be read: VMIO_ON_READ_ERROR_*.
    pub on_read_error: u32,
    /// The pattern of VMIO_ON_READ_ERROR_POISON.
    pub poison: [u8; 8],
    /// Lets the file change by vmio_commit alone: the close of the last handle forgets stores that no commit has. Not
    /// with VMIO_ENGINE_MANAGED, VMIO_ENGINE_KERNEL, VMIO_FRAMES_MIXED and VMIO_FRAMES_STREAM.
    pub journal: *const vmio_journal,
    /// Memory of the cache that the mapping keeps once it has it. No pages of it go for other mappings, as long as
    /// those have pages above their own floors. VMIO_ERROR_CACHE_FULL if the floors of all would leave too little of
    /// the cache. Not with VMIO_ENGINE_MANAGED and VMIO_ENGINE_KERNEL.
    pub floor_bytes: u64,
    /// Memory of the cache that the mapping may have, 1 MiB at least and no less than its floor; by default all of it. A
    /// miss at the ceiling evicts from the mapping itself. Not with VMIO_ENGINE_MANAGED and
    /// VMIO_ENGINE_KERNEL.
    pub ceiling_bytes: u64,
}

/// Maps a file or block device; `options` may be NULL. Opening a file again that this process has mapped through the
/// same cache gives another handle to the same addresses. Its options are then those of the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vmio_open(
    cache: Option<&vmio_cache>,
    path: *const c_char,
    options: *const vmio_open_options,
    mapping: Option<&mut MaybeUninit<*mut vmio_mapping>>,
) -> vmio_status {
    report(|| {
        hand_out(mapping, "mapping", || {
            let cache = given(cache, "cache")?;
            // SAFETY: the caller vouches for the path and the options.
            let (path, options): (_, vmio_open_options) =
                unsafe { (read_path(path)?, read_options(options, "options")?) };
            // First, so that no file is emptied for options that make no sense.
            let mut mapping_options = options.mapping()?;
            // SAFETY: the caller vouches for the handle in the options, as for one that is an argument.
            if let Some(journal) = unsafe { options.journal.as_ref() } {
                mapping_options = mapping_options.atomic(&journal.0);
            }
            Ok(vmio_mapping(Mapping::open(&cache.0, options.backing(path)?, mapping_options)?))
        })
    })
}

/// Syncs and gives the handle back; with the last handle and pin, the addresses too. A mapping with a journal is not
/// committed. The handle is gone whatever the call returns: sync first, if you can handle an error. NULL does
/// nothing.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_close(mapping: Option<Box<vmio_mapping>>) -> vmio_status {
    report(|| mapping.map_or(Ok(()), |mapping| Ok(mapping.0.close()?)))
}

/// Returns the address of the first byte, for loads and, unless the mapping is read-only, stores; it is valid until the last handle is
/// closed. NULL for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_pointer(mapping: Option<&vmio_mapping>) -> *mut c_void {
    mapping.map_or(ptr::null_mut(), |mapping| mapping.0.as_mut_ptr().cast())
}

/// Returns the length in bytes; 0 for NULL.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_len(mapping: Option<&vmio_mapping>) -> u64 {
    contain(0, || mapping.map_or(0, |mapping| mapping.0.len()))
}

/// Changes the length of the file and of the mapping, within `reserve_bytes`; new bytes are zeros. Bytes that are cut off
/// must not be in use.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_set_len(mapping: Option<&vmio_mapping>, len: u64) -> vmio_status {
    report(|| Ok(given(mapping, "mapping")?.0.set_len(len)?))
}

/// Returns the first error since the last such call of a page that could not be read, whether or not poison has
/// replaced it. VMIO_OK if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn vmio_take_read_error(mapping: Option<&vmio_mapping>) -> vmio_status {
    report(|| match given(mapping, "mapping")?.0.take_read_error() {
        None => Ok(()),
        Some(error) => Err(error.into()),
    })
}

impl vmio_open_options {
    fn access(&self) -> Result<Access, Failure> {
        access(self.access, "options.access")
    }

    fn backing(&self, path: &Path) -> Result<FileBacking, Failure> {
        let access = self.access()?;
        if self.create != VMIO_CREATE_NEVER && access == Access::ReadOnly {
            return Err(Failure::invalid("options.create makes a file, which options.access says is read-only"));
        }
        match self.create {
            VMIO_CREATE_NEVER => {}
            VMIO_CREATE_IF_MISSING => create_if_missing(path, self.len)?,
            VMIO_CREATE_EMPTY => return Ok(FileBacking::create(path, self.len)?),
            other => return Err(unknown("options.create", other, "VMIO_CREATE_*")),
        }
        Ok(FileBacking::open(path, access)?)
    }

    fn mapping(&self) -> Result<MappingOptions, Failure> {
        let mut options = MappingOptions::new().frames(frames(self.frames)?);
        if self.reserve_bytes != 0 {
            options = options.reserve(self.reserve_bytes);
        }
        if self.floor_bytes != 0 {
            options = options.floor(self.floor_bytes);
        }
        if self.ceiling_bytes != 0 {
            options = options.ceiling(self.ceiling_bytes);
        }
        if self.priority != 0 {
            let priority = self.priority.checked_sub(VMIO_PRIORITY_SET).and_then(|value| u8::try_from(value).ok());
            let wrong = || unknown("options.priority", self.priority, "VMIO_PRIORITY_SET + 0 to 255");
            options = options.priority(priority.ok_or_else(wrong)?);
        }
        options = match self.unit_bytes {
            0 => options,
            4096 => options.unit(Unit::Kib4),
            16384 => options.unit(Unit::Kib16),
            65536 => options.unit(Unit::Kib64),
            other => return Err(unknown("options.unit_bytes", other, "4096, 16384 or 65536")),
        };
        match self.on_read_error {
            VMIO_ON_READ_ERROR_SIGBUS => Ok(options),
            VMIO_ON_READ_ERROR_POISON => Ok(options.on_read_error(OnReadError::Poison(self.poison))),
            other => Err(unknown("options.on_read_error", other, "VMIO_ON_READ_ERROR_*")),
        }
    }
}

/// Makes a file unless there is one.
fn create_if_missing(path: &Path, len: u64) -> Result<(), Failure> {
    match File::options().write(true).create_new(true).open(path).and_then(|file| file.set_len(len)) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(vmio::Error::Open { path: path.display().to_string(), source: error }.into())
        }
        _ => Ok(()),
    }
}

/// The access of that number.
pub(super) fn access(number: u32, name: &str) -> Result<Access, Failure> {
    match number {
        VMIO_READ_WRITE => Ok(Access::ReadWrite),
        VMIO_READ_ONLY => Ok(Access::ReadOnly),
        other => Err(unknown(name, other, "VMIO_READ_WRITE or VMIO_READ_ONLY")),
    }
}

/// A range of bytes of a mapping.
pub(super) fn range(mapping: &Mapping, offset: u64, len: u64) -> Result<Range<u64>, Failure> {
    let end = if len == VMIO_TO_END { mapping.len().max(offset) } else { offset.saturating_add(len) };
    if end > mapping.len() {
        return Err(vmio::Error::OutOfRange { range: offset..end, len: mapping.len() }.into());
    }
    Ok(offset..end)
}
