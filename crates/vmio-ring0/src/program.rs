//! The parts of the program's file and of its libraries that are in memory.

use std::ops::Range;

use crate::error::Result;

/// Work on each part, and how it went so far.
struct Visit<'a> {
    each: &'a mut dyn FnMut(Range<usize>) -> Result<()>,
    done: Result<()>,
}

/// Calls a function with the addresses of each part, until it fails.
pub(crate) fn each_part(each: &mut dyn FnMut(Range<usize>) -> Result<()>) -> Result<()> {
    let mut visit = Visit { each, done: Ok(()) };
    // SAFETY: the function gets the visit, which lives meanwhile.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut visit).cast()) };
    visit.done
}

unsafe extern "C" fn visit_object(object: *mut libc::dl_phdr_info, _: usize, visit: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the loader passes an object with as many headers as it says, and the visit of `each_part`.
    let (object, headers, visit) = unsafe {
        let object = &*object;
        let headers = std::slice::from_raw_parts(object.dlpi_phdr, object.dlpi_phnum.into());
        (object, headers, &mut *visit.cast::<Visit<'_>>())
    };
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_memsz > 0) {
        let start = object.dlpi_addr.wrapping_add(header.p_vaddr) as usize;
        visit.done = (visit.each)(start..start + header.p_memsz as usize);
        if visit.done.is_err() {
            return 1;
        }
    }
    0
}
