//! The kernel module: built from `kernel/` against the headers of a kernel of the lab, and tested in a guest.

use std::ffi::OsStr;
use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::Machine;
use crate::build_root::{BuildRoot, COMPILER};
use crate::debug_kernel;
use crate::guest::Guest;
use crate::kernel::{Kernel, Origin, Series};
use crate::lab::{entries, fetch_packages, lab_folder, output, run, workspace};

/// What a module is built from.
struct Headers {
    /// What `make -C` takes.
    folder: PathBuf,
    /// Where that is, and make itself, if not on the host.
    root: Option<BuildRoot>,
}

impl Headers {
    /// Those of a kernel: from an earlier call, or what apt offers for exactly its release.
    fn of(kernel: &Kernel, series: Series) -> Result<Headers> {
        match series.origin() {
            Origin::Debian12(_) => Headers::of_debian_12(kernel, series),
            Origin::Debian13Backports | Origin::Ubuntu(_) => {
                let root = BuildRoot::of(kernel, series)?;
                Ok(Headers { folder: root.headers(kernel), root: Some(root) })
            }
            Origin::Source => Ok(Headers { folder: debug_kernel::build_folder()?, root: None }),
        }
    }

    fn of_debian_12(kernel: &Kernel, series: Series) -> Result<Headers> {
        let root = lab_folder()?.join(format!("{}-headers", series.name()));
        let name = format!("linux-headers-{}", kernel.release);
        let folder = root.join("usr/src").join(&name);
        if !folder.exists() {
            if root.exists() {
                fs::remove_dir_all(&root)?;
            }
            eprintln!("fetching the headers of Linux {}", kernel.release);
            fetch_packages(&packages(&name)?, &root)?;
            // It names a folder as it would be if the package were installed.
            let makefile = folder.join("Makefile");
            let text = fs::read_to_string(&makefile).with_context(|| format!("reading {}", makefile.display()))?;
            fs::write(&makefile, text.replace("include /usr/src/", "include ../"))?;
        }
        Ok(Headers { folder, root: None })
    }

    /// Make for sources in a folder of such a name, and where that folder is.
    fn make(&self, name: &str) -> Result<(Command, PathBuf)> {
        let (mut make, source, folder) = match &self.root {
            None => {
                let folder = lab_folder()?.join(name);
                (Command::new("make"), folder.clone(), folder)
            }
            Some(root) => {
                let source = Path::new("/root").join(name);
                let folder = root.within(&source);
                let mut make = root.command("make");
                make.arg(format!("CC={COMPILER}"));
                (make, source, folder)
            }
        };
        make.arg("-C").arg(&self.folder).arg(format!("M={}", source.display()));
        Ok((make, folder))
    }
}

/// A package of headers and those that it builds upon.
fn packages(name: &str) -> Result<Vec<String>> {
    let needed = output(Command::new("apt-cache").args(["depends", "--important", name])).with_context(|| {
        format!("no headers for the kernel in {}: delete it", lab_folder().unwrap_or_default().display())
    })?;
    let needed = needed.lines().filter_map(|line| line.trim().strip_prefix("Depends: "));
    let needed = needed.filter(|name| name.starts_with("linux-headers-") || name.starts_with("linux-kbuild-"));
    Ok(needed.chain([name]).map(str::to_owned).collect())
}

/// What Ubuntu's makefiles say of Debian's compiler.
const OTHER_COMPILER: &str = "warning: the compiler differs from the one used to build the kernel";

/// Has sparse check the module's sources, too, which compiles all of them again.
const SPARSE: &str = "C=2";

/// Builds the module for a kernel, where a warning is an error, and says where it is.
pub(crate) fn build(series: Series) -> Result<PathBuf> {
    build_from(series, &sources(), "module", &[])
}

/// The same, where a warning of sparse is an error, too.
pub(crate) fn check(series: Series) -> Result<PathBuf> {
    let sparse = Command::new("sparse").arg("--version").output();
    ensure!(
        sparse.is_ok_and(|said| said.status.success()),
        "there is no sparse: install it, or build without --sparse"
    );
    build_from(series, &sources(), "module", &[SPARSE])
}

/// Where its sources are, and folders with programs and scripts about it.
pub(crate) fn sources() -> PathBuf {
    workspace().join("kernel")
}

/// The same from other sources, in a folder of the lab that has a name of their own.
pub(crate) fn build_from(series: Series, sources: &Path, name: &str, options: &[&str]) -> Result<PathBuf> {
    ensure!(series != Series::Linux5_15, "the module needs Linux 6.1 or newer");
    let headers = Headers::of(&Kernel::of(series)?, series)?;
    let (mut make, folder) = headers.make(&format!("{}-{name}", series.name()))?;
    copy_sources(sources, &folder)?;
    // Without pahole there are no types for BPF; nothing else needs them.
    make.args(["W=1", "KCFLAGS=-Werror", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]).args(options);
    let made = make.output().with_context(|| format!("{make:?}: is it installed?"))?;
    let said = format!("{}{}", String::from_utf8_lossy(&made.stdout), String::from_utf8_lossy(&made.stderr));
    let mut lines = said.lines().filter(|line| *line != OTHER_COMPILER);
    let warned = lines.any(|line| line.to_lowercase().contains("warning"));
    if !made.status.success() || warned {
        bail!("{make:?}: {}{}\n{said}", made.status, if warned { ", with warnings" } else { "" });
    }
    Ok(folder.join("vmio.ko"))
}

/// Copies sources that have changed since they were last copied, so that make builds no more than those; nothing that was built there.
pub(crate) fn copy_sources(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for source in entries(from)? {
        let copy = to.join(source.file_name().unwrap_or_default());
        let is_source = source.ends_with("Kbuild") || source.extension().is_some_and(|end| end == "c" || end == "h");
        if source.is_dir() {
            copy_sources(&source, &copy)?;
        } else if is_source && fs::read(&copy).ok() != Some(fs::read(&source)?) {
            fs::copy(&source, &copy)?;
        }
    }
    Ok(())
}

/// Builds the module and its tests, and runs these in a guest of two nodes at least, where it is then loaded and unloaded so
/// often; 0 if all is well.
pub(crate) fn test(machine: Machine, rounds: u32, wanted: &[String]) -> Result<u8> {
    let machine = Machine { nodes: machine.nodes.max(machine.cores.min(2)), ..machine };
    let arguments: Vec<String> = iter::once(rounds.to_string()).chain(wanted.iter().cloned()).collect();
    let script = script("tests", "suite", &[("module", &build(machine.kernel)?)], &arguments, &[])?;
    Guest::new(machine, None)?.run(&script)
}

/// Builds the program of a folder beside the module, and returns a script of that folder, to be run in a guest: with arguments, and
/// variables, of which one is the program, by the name of the folder.
pub(crate) fn script(
    folder: &str,
    name: &str,
    variables: &[(&str, &Path)],
    arguments: &[String],
    libraries: &[&OsStr],
) -> Result<String> {
    let folder_of_sources = sources().join(folder);
    let program = lab_folder()?.join(format!("module-{folder}"));
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(&program);
    cc.args(entries(&folder_of_sources)?.iter().filter(|source| source.extension().is_some_and(|end| end == "c")));
    run(cc.args(libraries))?;
    let mut script = String::new();
    for (name, path) in variables.iter().copied().chain([(folder, program.as_path())]) {
        script += &format!("{name}={}\n", shlex::try_quote(&path.to_string_lossy())?);
    }
    let arguments = shlex::try_join(arguments.iter().map(String::as_str))?;
    let text = fs::read_to_string(folder_of_sources.join(name))?;
    Ok(format!("{script}set -- {arguments}\n{text}"))
}
