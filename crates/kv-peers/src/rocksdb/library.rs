//! What is used of `rocksdb/c.h`, the system's RocksDB library (7.8 or later).

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use anyhow::{Context, Result, bail};

/// A type of the library that is only pointed to.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        struct $name {
            _bytes: [u8; 0],
            _neither_send_nor_sync: PhantomData<*mut u8>,
        })*
    };
}

opaque!(Db, DbOptions, ReadOptions, WriteOptions, FlushOptions, PinnableSlice, RawIterator);

#[link(name = "rocksdb")]
unsafe extern "C" {
    fn rocksdb_options_create() -> *mut DbOptions;
    fn rocksdb_options_destroy(options: *mut DbOptions);
    fn rocksdb_get_options_from_string(
        base: *const DbOptions,
        text: *const c_char,
        options: *mut DbOptions,
        error: *mut *mut c_char,
    );
    fn rocksdb_open(options: *const DbOptions, path: *const c_char, error: *mut *mut c_char) -> *mut Db;
    fn rocksdb_close(db: *mut Db);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    fn rocksdb_put(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_delete(
        db: *mut Db,
        options: *const WriteOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned(
        db: *mut Db,
        options: *const ReadOptions,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    fn rocksdb_pinnableslice_value(slice: *const PinnableSlice, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);
    fn rocksdb_create_iterator(db: *mut Db, options: *const ReadOptions) -> *mut RawIterator;
    fn rocksdb_iter_destroy(iterator: *mut RawIterator);
    fn rocksdb_iter_seek(iterator: *mut RawIterator, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_valid(iterator: *const RawIterator) -> c_uchar;
    fn rocksdb_iter_next(iterator: *mut RawIterator);
    fn rocksdb_iter_key(iterator: *const RawIterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: *const RawIterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: *const RawIterator, error: *mut *mut c_char);
    fn rocksdb_flush(db: *mut Db, options: *const FlushOptions, error: *mut *mut c_char);
    fn rocksdb_flush_wal(db: *mut Db, sync: c_uchar, error: *mut *mut c_char);
    fn rocksdb_property_int(db: *mut Db, name: *const c_char, value: *mut u64) -> c_int;
    fn rocksdb_free(memory: *mut std::ffi::c_void);
}

/// A database that is open.
///
/// All pointers are the library's own, of what it has made and this value destroys once.
pub struct Database {
    db: NonNull<Db>,
    writing: NonNull<WriteOptions>,
    reading: NonNull<ReadOptions>,
    flushing: NonNull<FlushOptions>,
}

// SAFETY: RocksDB lets any threads use a database at the same time, and options that nobody changes.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Opens or creates a database with options in RocksDB's own notation.
    pub fn open(folder: &Path, options: &str) -> Result<Self> {
        let text = CString::new(options)?;
        let path = CString::new(folder.as_os_str().as_bytes())?;
        // SAFETY: makers of options take nothing and give what is theirs to destroy.
        let (base, parsed) = unsafe { (rocksdb_options_create(), rocksdb_options_create()) };
        // SAFETY: both are options that were just made, and the text ends in a zero.
        let outcome = checked(|error| unsafe { rocksdb_get_options_from_string(base, text.as_ptr(), parsed, error) });
        let opened = outcome
            .with_context(|| format!("RocksDB does not take the options {options}"))
            // SAFETY: as above; opening copies the options.
            .and_then(|()| checked(|error| unsafe { rocksdb_open(parsed, path.as_ptr(), error) }));
        // SAFETY: they were made above, and nothing refers to them any longer.
        unsafe {
            rocksdb_options_destroy(base);
            rocksdb_options_destroy(parsed);
        }
        let db = NonNull::new(opened?).context("RocksDB opened nothing")?;
        // SAFETY: as for the options above.
        let made =
            unsafe { (rocksdb_writeoptions_create(), rocksdb_readoptions_create(), rocksdb_flushoptions_create()) };
        let (Some(writing), Some(reading), Some(flushing)) =
            (NonNull::new(made.0), NonNull::new(made.1), NonNull::new(made.2))
        else {
            bail!("RocksDB made no options");
        };
        Ok(Self { db, writing, reading, flushing })
    }

    /// Sets a key's value.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let (db, options) = (self.db.as_ptr(), self.writing.as_ptr());
        // SAFETY: the database is open while `self` lives; key and value are read during the call only.
        checked(|error| unsafe {
            rocksdb_put(db, options, key.as_ptr().cast(), key.len(), value.as_ptr().cast(), value.len(), error);
        })
    }

    /// Removes a key.
    pub fn delete(&self, key: &[u8]) -> Result<()> {
        let (db, options) = (self.db.as_ptr(), self.writing.as_ptr());
        // SAFETY: the database is open while `self` lives; the key is read during the call only.
        checked(|error| unsafe { rocksdb_delete(db, options, key.as_ptr().cast(), key.len(), error) })
    }

    /// Shows a key's value where the block cache has it.
    pub fn get(&self, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (db, options) = (self.db.as_ptr(), self.reading.as_ptr());
        // SAFETY: the database is open while `self` lives; the key is read during the call only.
        let pinned =
            checked(|error| unsafe { rocksdb_get_pinned(db, options, key.as_ptr().cast(), key.len(), error) })?;
        let Some(pinned) = NonNull::new(pinned) else { return Ok(false) };
        let mut bytes = 0;
        // SAFETY: the value stays where it is until the slice is destroyed, which is after it was read.
        read(unsafe { view(rocksdb_pinnableslice_value(pinned.as_ptr(), &mut bytes), bytes) });
        // SAFETY: it was given to us, and its value is not looked at any longer.
        unsafe { rocksdb_pinnableslice_destroy(pinned.as_ptr()) };
        Ok(true)
    }

    /// Shows up to so many records in order.
    pub fn scan(&self, from: &[u8], records: usize, read: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        // SAFETY: the database is open while `self` lives, and outlives the iterator, which is destroyed below.
        let iterator = unsafe { rocksdb_create_iterator(self.db.as_ptr(), self.reading.as_ptr()) };
        // SAFETY: the iterator was just made; the key is read during the call only.
        unsafe { rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len()) };
        let mut seen = 0;
        // SAFETY: the iterator is alive.
        while seen < records && unsafe { rocksdb_iter_valid(iterator) } != 0 {
            let (mut key_bytes, mut value_bytes) = (0, 0);
            // SAFETY: a valid iterator's key and value stay where they are until it moves on.
            unsafe {
                let key = view(rocksdb_iter_key(iterator, &mut key_bytes), key_bytes);
                read(key, view(rocksdb_iter_value(iterator, &mut value_bytes), value_bytes));
                rocksdb_iter_next(iterator);
            }
            seen += 1;
        }
        // SAFETY: the iterator is alive.
        let outcome = checked(|error| unsafe { rocksdb_iter_get_error(iterator, error) });
        // SAFETY: it was made above and is not used any longer.
        unsafe { rocksdb_iter_destroy(iterator) };
        outcome.map(|()| seen)
    }

    /// Writes the memtable, and waits until that is done.
    pub fn flush_memtable(&self) -> Result<()> {
        // SAFETY: the database is open while `self` lives; these options say that it waits.
        checked(|error| unsafe { rocksdb_flush(self.db.as_ptr(), self.flushing.as_ptr(), error) })
    }

    /// Makes the write-ahead log durable.
    pub fn sync_log(&self) -> Result<()> {
        // SAFETY: the database is open while `self` lives.
        checked(|error| unsafe { rocksdb_flush_wal(self.db.as_ptr(), 1, error) })
    }

    /// A property that is a number.
    pub fn property(&self, name: &CStr) -> Option<u64> {
        let mut value = 0;
        // SAFETY: the database is open while `self` lives, the name ends in a zero, and the value is written on success.
        let status = unsafe { rocksdb_property_int(self.db.as_ptr(), name.as_ptr(), &mut value) };
        (status == 0).then_some(value)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: all were made in `open`, and nobody uses a database that is dropped.
        unsafe {
            rocksdb_close(self.db.as_ptr());
            rocksdb_writeoptions_destroy(self.writing.as_ptr());
            rocksdb_readoptions_destroy(self.reading.as_ptr());
            rocksdb_flushoptions_destroy(self.flushing.as_ptr());
        }
    }
}

/// Calls a function that says by its last argument what went wrong.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let value = call(&mut error);
    if error.is_null() {
        return Ok(value);
    }
    // SAFETY: where the library sets it, it is text that ends in a zero, ours to free.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; it was copied.
    unsafe { rocksdb_free(error.cast()) };
    bail!("RocksDB: {message}")
}

/// Bytes of the library's.
///
/// # Safety
/// So many bytes are there and stay as they are while the result is in use.
unsafe fn view<'a>(data: *const c_char, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it; the pointer of a slice that is not empty is not null.
    unsafe { slice::from_raw_parts(data.cast(), bytes) }
}
