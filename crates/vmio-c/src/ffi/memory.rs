//! Memory of the caller: structures that may be older or newer than this library, strings, and places for results.

use std::ffi::{CStr, OsStr, c_char};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use zerocopy::{FromZeros, Immutable, IntoBytes};

use crate::failure::Failure;

/// Reads options that begin with their size, as the caller's header had it. Fields that the caller's version lacks are
/// zero. Fields that this version does not know must be zero. NULL is all zeros.
///
/// # Safety
/// `options` is NULL or points to a `usize` that says how many initialised bytes begin there. `T` is made of numbers and
/// pointers, which any bytes stand for, without padding.
pub(super) unsafe fn read_options<T: FromZeros>(options: *const T, name: &str) -> Result<T, Failure> {
    let mut known = T::new_zeroed();
    if options.is_null() {
        return Ok(known);
    }
    // SAFETY: the caller vouches that a size begins there.
    let size = unsafe { options.cast::<usize>().read_unaligned() };
    check_size(size, name)?;
    let known_bytes = size.min(size_of::<T>());
    // SAFETY: the caller vouches for as many initialised bytes as the size says.
    let unknown = unsafe { slice::from_raw_parts(options.cast::<u8>().add(known_bytes), size - known_bytes) };
    if unknown.iter().any(|byte| *byte != 0) {
        return Err(Failure::invalid(format!("{name} has a field set that this version of vmio does not know")));
    }
    // SAFETY: this many bytes begin at both, and any bytes are a `T`. Copied as they are, pointers stay what they are.
    unsafe { (&raw mut known).cast::<u8>().copy_from_nonoverlapping(options.cast(), known_bytes) };
    Ok(known)
}

/// Fills a structure that begins with its size, which stays as it is. It leaves out fields that the caller's version
/// lacks. Fields that this version does not know become zero.
///
/// # Safety
/// `target` is NULL or points to a `usize` that says how many bytes begin there; nobody else uses them meanwhile.
pub(super) unsafe fn write_result<T: IntoBytes + Immutable>(
    target: *mut T,
    value: &T,
    name: &str,
) -> Result<(), Failure> {
    if target.is_null() {
        return Err(null(name));
    }
    // SAFETY: the caller vouches that a size begins there.
    let size = unsafe { target.cast::<usize>().read_unaligned() };
    check_size(size, name)?;
    let rest = size_of::<usize>();
    // SAFETY: the caller vouches for as many bytes as the size says, which nobody else uses meanwhile.
    let bytes = unsafe { slice::from_raw_parts_mut(target.cast::<MaybeUninit<u8>>().add(rest), size - rest) };
    let known = &value.as_bytes()[rest..];
    for (at, byte) in bytes.iter_mut().enumerate() {
        byte.write(known.get(at).copied().unwrap_or(0));
    }
    Ok(())
}

fn check_size(size: usize, name: &str) -> Result<(), Failure> {
    // A page is more than any version will have: such a size was never set.
    if (size_of::<usize>()..=4096).contains(&size) {
        return Ok(());
    }
    Err(Failure::invalid(format!("{name}.size is {size}: set it to the size of the structure")))
}

/// A path as C has it: bytes up to a NUL.
///
/// # Safety
/// `path` is NULL or points to a string that ends with a NUL and stays as it is for `'a`.
pub(super) unsafe fn read_path<'a>(path: *const c_char) -> Result<&'a Path, Failure> {
    if path.is_null() {
        return Err(null("path"));
    }
    // SAFETY: the caller vouches for a string that ends with a NUL and stays as it is.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// The elements of an array; none of NULL.
///
/// # Safety
/// `first` is NULL, or this many initialised elements begin there, which nobody changes for `'a`.
pub(super) unsafe fn read_array<'a, T>(first: *const T, count: usize) -> &'a [T] {
    if first.is_null() {
        return &[];
    }
    // SAFETY: the caller vouches for this many initialised elements, which nobody changes.
    unsafe { slice::from_raw_parts(first, count) }
}

/// Space for an array of bytes; none at NULL.
///
/// # Safety
/// `first` is NULL, or this many bytes begin there, which nobody else uses for `'a`.
pub(super) unsafe fn bytes_at<'a>(first: *mut u8, count: usize) -> &'a mut [MaybeUninit<u8>] {
    if first.is_null() {
        return &mut [];
    }
    // SAFETY: the caller vouches for this many bytes, which nobody else uses; they need not be initialised.
    unsafe { slice::from_raw_parts_mut(first.cast(), count) }
}

/// The object behind a handle.
pub(super) fn given<T>(handle: Option<T>, name: &str) -> Result<T, Failure> {
    handle.ok_or_else(|| null(name))
}

/// Puts a new handle where the caller wants it; NULL if it could not be made.
pub(super) fn hand_out<T>(
    target: Option<&mut MaybeUninit<*mut T>>,
    name: &str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let target = given(target, name)?.write(std::ptr::null_mut());
    *target = Box::into_raw(Box::new(make()?));
    Ok(())
}

fn null(name: &str) -> Failure {
    Failure::invalid(format!("{name} is NULL"))
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;

    #[derive(FromBytes, IntoBytes, Immutable, Debug, PartialEq)]
    #[repr(C)]
    struct Sample {
        size: usize,
        first: u64,
        second: u64,
    }

    fn read(words: &[usize]) -> Result<Sample, Failure> {
        // SAFETY: each caller below says in the first word how many bytes there are, or a size that is refused.
        unsafe { read_options(words.as_ptr().cast(), "sample") }
    }

    #[test]
    fn older_options_are_completed_with_zeros_and_newer_ones_taken_if_they_ask_for_nothing_new() {
        assert_eq!(read(&[24, 1, 2]).unwrap(), Sample { size: 24, first: 1, second: 2 });
        assert_eq!(read(&[16, 1, 2]).unwrap(), Sample { size: 16, first: 1, second: 0 });
        assert_eq!(read(&[32, 1, 2, 0]).unwrap(), Sample { size: 32, first: 1, second: 2 });
        assert!(read(&[32, 1, 2, 3]).unwrap_err().message.contains("does not know"));
        assert!(read(&[0, 1, 2]).unwrap_err().message.contains("sample.size is 0"));
        assert!(read(&[usize::MAX, 1, 2]).unwrap_err().message.contains("sample.size"));
        // SAFETY: NULL is allowed.
        let defaults = unsafe { read_options(std::ptr::null::<Sample>(), "sample") };
        assert_eq!(defaults.unwrap(), Sample::new_zeroed());
    }

    #[test]
    fn results_are_as_long_as_the_caller_has_room() {
        let value = Sample { size: 0, first: 7, second: 8 };
        for (size, expected) in [(16, [16, 7, 9, 9]), (24, [24, 7, 8, 9]), (32, [32, 7, 8, 0])] {
            let mut words: [usize; 4] = [size, 9, 9, 9];
            // SAFETY: the first word says how many of the bytes there are.
            unsafe { write_result(words.as_mut_ptr().cast::<Sample>(), &value, "sample") }.unwrap();
            assert_eq!(words, expected);
        }
        // SAFETY: NULL is allowed.
        unsafe { write_result(std::ptr::null_mut(), &value, "sample") }.unwrap_err();
    }
}
