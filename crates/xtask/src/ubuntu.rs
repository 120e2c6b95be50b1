//! Ubuntu's kernels, of versions that Debian does not have.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::lab::run;

/// What debootstrap knows of such a release: where its packages are.
const SCRIPT: &str = "/usr/share/debootstrap/scripts/jammy";

/// A package: its path below a mirror, and its SHA-256.
type Package = (&'static str, &'static str);

/// The packages of a kernel. No update ever replaces them: they have the version in their names, or are those of a first release.
pub(crate) struct UbuntuKernel {
    pub(crate) image: [Package; 2],
    /// None where no module is built for it.
    pub(crate) headers: &'static [Package],
}

/// Of Ubuntu 22.04.
pub(crate) const LINUX_5_15: UbuntuKernel = UbuntuKernel {
    image: [
        (
            "pool/main/l/linux/linux-image-unsigned-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
            "ac69df20790c48217eb1386ef81fd10d3f20a4ede4dab81cc107c65d29549fa0",
        ),
        (
            "pool/main/l/linux/linux-modules-5.15.0-25-generic_5.15.0-25.25_amd64.deb",
            "d0ba4087d9e1d497925b3481d3531fba6c2a852855f8019d73b0b1385aa4da1f",
        ),
    ],
    headers: &[],
};

/// Of Ubuntu 24.04, as are the next.
pub(crate) const LINUX_6_8: UbuntuKernel = UbuntuKernel {
    image: [
        (
            "pool/main/l/linux/linux-image-unsigned-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
            "35115ceb5ddc1e73034a73d6b064b9c6d38c534f20279fd7229c510515b931d8",
        ),
        (
            "pool/main/l/linux/linux-modules-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
            "3f17f2c279257eb50e40da44390bdf8272c440ca078831c348773d1314b5c2fe",
        ),
    ],
    headers: &[
        (
            "pool/main/l/linux/linux-headers-6.8.0-31_6.8.0-31.31_all.deb",
            "b332a7edf4ea4b5124c52496b5a18d0c1858dd85b1d91fd4dba6f1e2978b3548",
        ),
        (
            "pool/main/l/linux/linux-headers-6.8.0-31-generic_6.8.0-31.31_amd64.deb",
            "dae8b1c95ad3a07d6a280c505cde6fa214bbc08db9e8ff75f58bbfab7ac991ae",
        ),
    ],
};

pub(crate) const LINUX_6_11: UbuntuKernel = UbuntuKernel {
    image: [
        (
            "pool/main/l/linux-hwe-6.11/linux-image-unsigned-6.11.0-29-generic_6.11.0-29.29~24.04.1_amd64.deb",
            "68b6cd1f1fdd6270e9bef7a4605e399a3dddc042b158b5bb60cddad665d5188e",
        ),
        (
            "pool/main/l/linux-hwe-6.11/linux-modules-6.11.0-29-generic_6.11.0-29.29~24.04.1_amd64.deb",
            "ad9eca2fd58295f5bdff74167cd332a114ab3116147d4331391b111bfae2ad27",
        ),
    ],
    headers: &[
        (
            "pool/main/l/linux-hwe-6.11/linux-hwe-6.11-headers-6.11.0-29_6.11.0-29.29~24.04.1_all.deb",
            "4dbc03eb9809e27d16e18eff1fc4da69ab5f8b0ad8a81a78c05e7845f5438d06",
        ),
        (
            "pool/main/l/linux-hwe-6.11/linux-headers-6.11.0-29-generic_6.11.0-29.29~24.04.1_amd64.deb",
            "02a42938203d8b7f6e58ab412160a16359d8ac14cd09ca7d2197c1ac39ab9122",
        ),
    ],
};

pub(crate) const LINUX_6_14: UbuntuKernel = UbuntuKernel {
    image: [
        (
            "pool/main/l/linux-hwe-6.14/linux-image-unsigned-6.14.0-37-generic_6.14.0-37.37~24.04.1_amd64.deb",
            "686e49cd35a99f336144f60eda4c3b3ad769f9cda3b28989fbea3230b9c787d0",
        ),
        (
            "pool/main/l/linux-hwe-6.14/linux-modules-6.14.0-37-generic_6.14.0-37.37~24.04.1_amd64.deb",
            "1bb1438d7d5f266da64f9ecc18f41bf37e5b94ad8a052b5d367ae09af03352fb",
        ),
    ],
    headers: &[
        (
            "pool/main/l/linux-hwe-6.14/linux-hwe-6.14-headers-6.14.0-37_6.14.0-37.37~24.04.1_all.deb",
            "be98c107d11a33306c71958239af5b9c399def15cf2e9262ea96f99e3b83806b",
        ),
        (
            "pool/main/l/linux-hwe-6.14/linux-headers-6.14.0-37-generic_6.14.0-37.37~24.04.1_amd64.deb",
            "133dc51d6d224467bd78730a7210bea2887121761d81e6fa626e55953dbb3b9b",
        ),
    ],
};

pub(crate) const LINUX_6_17: UbuntuKernel = UbuntuKernel {
    image: [
        (
            "pool/main/l/linux-hwe-6.17/linux-image-unsigned-6.17.0-42-generic_6.17.0-42.42_amd64.deb",
            "45b7e98dbad83c111a46129512071edb2793ced0f06db10f8fa3f318b57ea18a",
        ),
        (
            "pool/main/l/linux-hwe-6.17/linux-modules-6.17.0-42-generic_6.17.0-42.42_amd64.deb",
            "7a04e0295f578c191f6559ef2e36b47470e5127190abdad2164f84cbca5e677d",
        ),
    ],
    headers: &[
        (
            "pool/main/l/linux-hwe-6.17/linux-hwe-6.17-headers-6.17.0-42_6.17.0-42.42_all.deb",
            "0b459c30b3c272eda73f22eefd8e5db22b9d27f9030e7b6f8f6e66714593e03a",
        ),
        (
            "pool/main/l/linux-hwe-6.17/linux-headers-6.17.0-42-generic_6.17.0-42.42_amd64.deb",
            "4a8ed3a08298ca71f8c121e4bda934b493a6f9e42dab54c758e10e234af12ed8",
        ),
    ],
};

/// Downloads packages into a folder, and compares their checksums.
pub(crate) fn download(packages: &[Package], folder: &Path) -> Result<()> {
    packages.iter().try_for_each(|(path, sum)| {
        let file = folder.join(path.rsplit('/').next().unwrap_or(path));
        download_one(path, sum, &file)
    })
}

/// Each from the first of Ubuntu's mirrors that has it.
fn download_one(path: &str, sum: &str, file: &Path) -> Result<()> {
    let script = fs::read_to_string(SCRIPT);
    let script = script.with_context(|| format!("reading {SCRIPT}: is debootstrap installed?"))?;
    let mut mirrors: Vec<_> = script.lines().filter_map(|line| line.trim().strip_prefix("default_mirror ")).collect();
    // Releases move to another when nobody cares for them any more.
    mirrors.sort_by_key(|mirror| mirror.contains("old-releases"));
    mirrors.dedup();
    for mirror in mirrors {
        let mut helper = Command::new("/usr/lib/apt/apt-helper");
        helper.arg("download-file").arg(format!("{mirror}/{path}")).arg(file).arg(format!("SHA256:{sum}"));
        if run(&mut helper).is_ok() {
            return Ok(());
        }
    }
    bail!("no mirror that debootstrap knows has {path}")
}
