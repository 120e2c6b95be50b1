//! Gives the shared library the name that programs ask the loader for.

fn main() {
    // The number is that of the binary interface: VMIO_ABI_MAJOR in src/ffi/error.rs.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libvmio.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
