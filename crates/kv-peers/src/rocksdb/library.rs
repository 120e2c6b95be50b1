//! The part of `rocksdb/c.h` that is used: the system's RocksDB library (7.8 or later).

use std::ffi::{CStr, CString, c_char, c_int, c_uchar};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::slice;

use anyhow::{Context, Result, bail};

/// A type of the library that is only used behind pointers.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        struct $name {
            _bytes: [u8; 0],
            _neither_send_nor_sync: PhantomData<*mut u8>,
        })*
    };
}

opaque!(Db, DbOptions, ReadOptions, WriteOptions, FlushOptions, PinnableSlice, RawIterator, Family);

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
    fn rocksdb_open_column_families(
        options: *const DbOptions,
        path: *const c_char,
        families: c_int,
        names: *const *const c_char,
        family_options: *const *const DbOptions,
        handles: *mut *mut Family,
        error: *mut *mut c_char,
    ) -> *mut Db;
    fn rocksdb_column_family_handle_destroy(family: *mut Family);
    fn rocksdb_close(db: *mut Db);
    fn rocksdb_writeoptions_create() -> *mut WriteOptions;
    fn rocksdb_writeoptions_set_sync(options: *mut WriteOptions, sync: c_uchar);
    fn rocksdb_writeoptions_destroy(options: *mut WriteOptions);
    fn rocksdb_readoptions_create() -> *mut ReadOptions;
    fn rocksdb_readoptions_destroy(options: *mut ReadOptions);
    fn rocksdb_flushoptions_create() -> *mut FlushOptions;
    fn rocksdb_flushoptions_destroy(options: *mut FlushOptions);
    fn rocksdb_put_cf(
        db: *mut Db,
        options: *const WriteOptions,
        family: *mut Family,
        key: *const c_char,
        key_bytes: usize,
        value: *const c_char,
        value_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_delete_cf(
        db: *mut Db,
        options: *const WriteOptions,
        family: *mut Family,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    );
    fn rocksdb_get_pinned_cf(
        db: *mut Db,
        options: *const ReadOptions,
        family: *mut Family,
        key: *const c_char,
        key_bytes: usize,
        error: *mut *mut c_char,
    ) -> *mut PinnableSlice;
    fn rocksdb_pinnableslice_value(slice: *const PinnableSlice, bytes: *mut usize) -> *const c_char;
    fn rocksdb_pinnableslice_destroy(slice: *mut PinnableSlice);
    fn rocksdb_create_iterator_cf(db: *mut Db, options: *const ReadOptions, family: *mut Family) -> *mut RawIterator;
    fn rocksdb_iter_destroy(iterator: *mut RawIterator);
    fn rocksdb_iter_seek(iterator: *mut RawIterator, key: *const c_char, key_bytes: usize);
    fn rocksdb_iter_valid(iterator: *const RawIterator) -> c_uchar;
    fn rocksdb_iter_next(iterator: *mut RawIterator);
    fn rocksdb_iter_key(iterator: *const RawIterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_value(iterator: *const RawIterator, bytes: *mut usize) -> *const c_char;
    fn rocksdb_iter_get_error(iterator: *const RawIterator, error: *mut *mut c_char);
    fn rocksdb_flush_cf(db: *mut Db, options: *const FlushOptions, family: *mut Family, error: *mut *mut c_char);
    fn rocksdb_flush_wal(db: *mut Db, sync: c_uchar, error: *mut *mut c_char);
    fn rocksdb_property_int_cf(db: *mut Db, family: *mut Family, name: *const c_char, value: *mut u64) -> c_int;
    fn rocksdb_free(memory: *mut std::ffi::c_void);
}

#[cfg(target_env = "gnu")]
unsafe extern "C" {
    fn mallopt(parameter: c_int, value: c_int) -> c_int;
}

/// Limits the allocator to two arenas, in place of eight for each processor. Memory that the library frees in one thread's arena is of no
/// use to other threads, and the library frees blocks of its cache in all threads.
pub fn limit_arenas() {
    #[cfg(target_env = "gnu")]
    {
        const M_ARENA_MAX: c_int = -8;
        // SAFETY: takes numbers alone; any thread may call it at any time.
        unsafe { mallopt(M_ARENA_MAX, 2) };
    }
}

/// An open database.
///
/// All pointers belong to the library, which made them; this value destroys them once.
pub struct Database {
    db: NonNull<Db>,
    writing: NonNull<WriteOptions>,
    reading: NonNull<ReadOptions>,
    flushing: NonNull<FlushOptions>,
    families: Vec<ColumnFamily>,
}

/// A column family of one database, valid as long as that database is open.
#[derive(Clone, Copy)]
pub struct ColumnFamily(NonNull<Family>);

// SAFETY: it is a name that any thread may use; each use checks the database that it belongs to.
unsafe impl Send for ColumnFamily {}
// SAFETY: as above.
unsafe impl Sync for ColumnFamily {}

// SAFETY: RocksDB lets threads use a database at the same time, and options that do not change.
unsafe impl Send for Database {}
// SAFETY: as above.
unsafe impl Sync for Database {}

impl Database {
    /// Opens or creates a database with these column families, and options in RocksDB's own notation.
    pub fn open(folder: &Path, options: &str, families: &[String], sync_writes: bool) -> Result<Self> {
        let texts = families.iter().map(|name| CString::new(name.as_str())).collect::<Result<Vec<_>, _>>()?;
        let names: Vec<_> = texts.iter().map(|name| name.as_ptr()).collect();
        let mut handles = vec![ptr::null_mut(); names.len()];
        let text = CString::new(options)?;
        let path = CString::new(folder.as_os_str().as_bytes())?;
        // SAFETY: constructors of options take nothing, and return a value that the caller destroys.
        let (base, parsed) = unsafe { (rocksdb_options_create(), rocksdb_options_create()) };
        // SAFETY: both are options that were just made, and the text ends in a zero.
        let outcome = checked(|error| unsafe { rocksdb_get_options_from_string(base, text.as_ptr(), parsed, error) });
        let opened = outcome.with_context(|| format!("RocksDB does not take the options {options}")).and_then(|()| {
            let each = vec![parsed.cast_const(); names.len()];
            let (names_at, each_at, handles_at) = (names.as_ptr(), each.as_ptr(), handles.as_mut_ptr());
            let count = names.len() as c_int;
            // SAFETY: as above; opening copies the options. The arrays have `count` elements each.
            checked(|error| unsafe {
                let path = path.as_ptr();
                rocksdb_open_column_families(parsed, path, count, names_at, each_at, handles_at, error)
            })
        });
        // SAFETY: they were made above, and nothing refers to them any more.
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
        // SAFETY: these options were just made.
        unsafe { rocksdb_writeoptions_set_sync(writing.as_ptr(), sync_writes.into()) };
        let families = handles.into_iter().filter_map(NonNull::new).map(ColumnFamily).collect();
        Ok(Self { db, writing, reading, flushing, families })
    }

    /// The column families, in the order of their names at opening.
    pub fn families(&self) -> impl Iterator<Item = ColumnFamily> {
        self.families.iter().copied()
    }

    /// Sets a key's value.
    pub fn put(&self, family: ColumnFamily, key: &[u8], value: &[u8]) -> Result<()> {
        let (db, options) = (self.db.as_ptr(), self.writing.as_ptr());
        // SAFETY: the database is open while `self` lives, and its families with it; key and value are read during the call only.
        checked(|error| unsafe {
            let family = family.0.as_ptr();
            let (value, value_bytes) = (value.as_ptr().cast(), value.len());
            rocksdb_put_cf(db, options, family, key.as_ptr().cast(), key.len(), value, value_bytes, error);
        })
    }

    /// Removes a key.
    pub fn delete(&self, family: ColumnFamily, key: &[u8]) -> Result<()> {
        let (db, options) = (self.db.as_ptr(), self.writing.as_ptr());
        // SAFETY: the database and its families are open while `self` lives; the key is read during the call only.
        checked(|error| unsafe {
            rocksdb_delete_cf(db, options, family.0.as_ptr(), key.as_ptr().cast(), key.len(), error)
        })
    }

    /// Shows a key's value, in place in the block cache.
    pub fn get(&self, family: ColumnFamily, key: &[u8], read: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (db, options) = (self.db.as_ptr(), self.reading.as_ptr());
        // SAFETY: the database and its families are open while `self` lives; the key is read during the call only.
        let pinned = checked(|error| unsafe {
            rocksdb_get_pinned_cf(db, options, family.0.as_ptr(), key.as_ptr().cast(), key.len(), error)
        })?;
        let Some(pinned) = NonNull::new(pinned) else { return Ok(false) };
        let mut bytes = 0;
        // SAFETY: the value stays in place until the slice is destroyed, which happens after the read.
        read(unsafe { view(rocksdb_pinnableslice_value(pinned.as_ptr(), &mut bytes), bytes) });
        // SAFETY: the slice belongs to the caller, and its value is not used any more.
        unsafe { rocksdb_pinnableslice_destroy(pinned.as_ptr()) };
        Ok(true)
    }

    /// Shows at most this many records, in order.
    pub fn scan(
        &self,
        family: ColumnFamily,
        from: &[u8],
        records: usize,
        read: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<usize> {
        // SAFETY: the database is open while `self` lives, and outlives the iterator, which is destroyed below.
        let iterator =
            unsafe { rocksdb_create_iterator_cf(self.db.as_ptr(), self.reading.as_ptr(), family.0.as_ptr()) };
        // SAFETY: the iterator was just made; the key is read during the call only.
        unsafe { rocksdb_iter_seek(iterator, from.as_ptr().cast(), from.len()) };
        let mut seen = 0;
        // SAFETY: the iterator is alive.
        while seen < records && unsafe { rocksdb_iter_valid(iterator) } != 0 {
            let (mut key_bytes, mut value_bytes) = (0, 0);
            // SAFETY: a valid iterator's key and value stay in place until the iterator moves.
            unsafe {
                let key = view(rocksdb_iter_key(iterator, &mut key_bytes), key_bytes);
                read(key, view(rocksdb_iter_value(iterator, &mut value_bytes), value_bytes));
                rocksdb_iter_next(iterator);
            }
            seen += 1;
        }
        // SAFETY: the iterator is alive.
        let outcome = checked(|error| unsafe { rocksdb_iter_get_error(iterator, error) });
        // SAFETY: it was made above and is not used any more.
        unsafe { rocksdb_iter_destroy(iterator) };
        outcome.map(|()| seen)
    }

    /// Writes a column family's memtable, and waits for the write.
    pub fn flush_memtable(&self, family: ColumnFamily) -> Result<()> {
        // SAFETY: the database is open while `self` lives; these options make the call wait.
        checked(|error| unsafe { rocksdb_flush_cf(self.db.as_ptr(), self.flushing.as_ptr(), family.0.as_ptr(), error) })
    }

    /// Makes the write-ahead log durable.
    pub fn sync_log(&self) -> Result<()> {
        // SAFETY: the database is open while `self` lives.
        checked(|error| unsafe { rocksdb_flush_wal(self.db.as_ptr(), 1, error) })
    }

    /// A numeric property of a column family.
    pub fn property(&self, family: ColumnFamily, name: &CStr) -> Option<u64> {
        let mut value = 0;
        // SAFETY: the database is open while `self` lives, the name ends in a zero, and the value is written on success.
        let status = unsafe { rocksdb_property_int_cf(self.db.as_ptr(), family.0.as_ptr(), name.as_ptr(), &mut value) };
        (status == 0).then_some(value)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // SAFETY: all were made in `open`, and a dropped database is not used.
        unsafe {
            self.families.iter().for_each(|family| rocksdb_column_family_handle_destroy(family.0.as_ptr()));
            rocksdb_close(self.db.as_ptr());
            rocksdb_writeoptions_destroy(self.writing.as_ptr());
            rocksdb_readoptions_destroy(self.reading.as_ptr());
            rocksdb_flushoptions_destroy(self.flushing.as_ptr());
        }
    }
}

/// Calls a function that reports errors through its last argument.
fn checked<T>(call: impl FnOnce(*mut *mut c_char) -> T) -> Result<T> {
    let mut error = ptr::null_mut();
    let value = call(&mut error);
    if error.is_null() {
        return Ok(value);
    }
    // SAFETY: an error of the library is text that ends in a zero, and the caller frees it.
    let message = unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned();
    // SAFETY: as above; it was copied.
    unsafe { rocksdb_free(error.cast()) };
    bail!("RocksDB: {message}")
}

/// Bytes that belong to the library.
///
/// # Safety
/// That many bytes must be there, and stay as they are while the result is in use.
unsafe fn view<'a>(data: *const c_char, bytes: usize) -> &'a [u8] {
    if bytes == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it; the pointer of a slice that is not empty is not null.
    unsafe { slice::from_raw_parts(data.cast(), bytes) }
}
