//! The bases of FS and GS: the same in the machine and outside, where handlers of signals run, whoever sets them.
//!
//! A program sets them by a system call, or by instructions that the kernel allows to it. At ring 0 these trap at first: only the processors of threads that
//! use them are asked for their bases when a thread goes outside.

use std::arch::asm;

use kvm_bindings::kvm_sregs;

use crate::level::Level;
use crate::monitor::Monitor;
use crate::raw;

const ARCH_SET_GS: u64 = 0x1001;
const ARCH_SET_FS: u64 = 0x1002;
const ARCH_GET_FS: u64 = 0x1003;
const ARCH_GET_GS: u64 = 0x1004;
const GET_SREGS: u64 = 0x8138_ae83;
const SET_SREGS: u64 = 0x4138_ae84;
pub(crate) const CR4_FS_GS_BASE: u64 = 1 << 16;

/// Those of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bases {
    pub(crate) fs: u64,
    pub(crate) gs: u64,
}

impl Bases {
    /// The calling thread's, outside.
    pub(crate) fn of_thread() -> Bases {
        let base = |which: u64| {
            let mut base = 0_u64;
            // SAFETY: arch_prctl(2) writes the word, which lives meanwhile.
            unsafe { raw::call(libc::SYS_arch_prctl as u64, [which, &raw mut base as u64, 0, 0, 0, 0]) };
            base
        };
        Bases { fs: base(ARCH_GET_FS), gs: base(ARCH_GET_GS) }
    }

    /// The same by instructions, where there are some.
    fn now() -> Option<Bases> {
        has_instructions().then(|| {
            let (fs, gs);
            // SAFETY: reads registers by instructions that the kernel allows.
            unsafe {
                asm!("rdfsbase {}", "rdgsbase {}", out(reg) fs, out(reg) gs, options(nomem, nostack, preserves_flags));
            }
            Bases { fs, gs }
        })
    }

    /// Gives them to the calling thread, outside, by the instructions.
    ///
    /// # Safety
    /// There are the instructions, and the bases are those that the thread's program has set.
    unsafe fn give_thread(self) {
        // SAFETY: the caller vouches for both.
        unsafe {
            asm!("wrfsbase {}", "wrgsbase {}", in(reg) self.fs, in(reg) self.gs, options(nostack, preserves_flags));
        }
    }
}

/// Whether programs may use instructions for bases: they ask the kernel, not the processor.
pub(crate) fn has_instructions() -> bool {
    const HWCAP2_FS_GS_BASE: usize = 1 << 1;
    rustix::param::linux_hwcap().1 & HWCAP2_FS_GS_BASE != 0
}

/// Whether a new processor lets its program use the instructions at once. At ring 3 they may not trap: an emulator does not run that code.
pub(crate) fn are_free_at_first(level: Level) -> bool {
    level == Level::Ring3 && has_instructions()
}

/// Whether arch_prctl(2) sets a base by this operation.
pub(crate) fn are_set(operation: u64) -> bool {
    matches!(operation, ARCH_SET_FS | ARCH_SET_GS)
}

impl Monitor<'_> {
    /// After a trap at an instruction that the processor does not have: lets it have those for bases, if that was not done. Whether there is a reason to try
    /// again.
    pub(crate) fn frees_bases(&mut self) -> bool {
        let is_new = !self.block.are_bases_free && has_instructions();
        if is_new {
            self.block.are_bases_free = true;
            self.change_sregs(|sregs| sregs.cr4 |= CR4_FS_GS_BASE);
        }
        is_new
    }

    /// Before the thread goes outside, or asks the kernel: it gets the bases that its program has set in the machine.
    pub(crate) fn bases_go_out(&mut self) {
        if !self.block.are_bases_free {
            return;
        }
        let kvm_sregs { fs, gs, .. } = self.sregs();
        let bases = Bases { fs: fs.base, gs: gs.base };
        if bases != self.block.bases {
            self.block.bases = bases;
            // SAFETY: there are the instructions if the program may use them.
            unsafe { bases.give_thread() };
        }
    }

    /// After a call outside, which a handler may have interrupted: the processor gets the bases that the thread has.
    pub(crate) fn bases_come_in(&mut self) {
        if let Some(bases) = Bases::now().filter(|bases| *bases != self.block.bases) {
            self.give_bases(bases);
        }
    }

    /// arch_prctl(2), where it sets a base.
    pub(crate) fn arch_prctl(&mut self, which: u64, base: u64) -> u64 {
        self.bases_go_out();
        // SAFETY: the call is the program's own.
        let answer = unsafe { raw::call(libc::SYS_arch_prctl as u64, [which, base, 0, 0, 0, 0]) };
        match which {
            ARCH_SET_FS if answer == 0 => self.give_bases(Bases { fs: base, ..self.block.bases }),
            ARCH_SET_GS if answer == 0 => self.give_bases(Bases { gs: base, ..self.block.bases }),
            _ => {}
        }
        answer
    }

    fn give_bases(&mut self, bases: Bases) {
        self.block.bases = bases;
        self.change_sregs(|sregs| (sregs.fs.base, sregs.gs.base) = (bases.fs, bases.gs));
    }

    fn change_sregs(&mut self, change: impl FnOnce(&mut kvm_sregs)) {
        let mut sregs = self.sregs();
        change(&mut sregs);
        // SAFETY: KVM reads the structure.
        let set = unsafe { raw::ioctl(self.block.descriptor, SET_SREGS, &raw const sregs as u64) };
        if let Some(error) = raw::error_of(set) {
            raw::die("KVM_SET_SREGS failed, errno", error as u64);
        }
    }

    fn sregs(&self) -> kvm_sregs {
        let mut sregs = kvm_sregs::default();
        // SAFETY: KVM writes the structure, which lives meanwhile.
        let got = unsafe { raw::ioctl(self.block.descriptor, GET_SREGS, &raw mut sregs as u64) };
        if let Some(error) = raw::error_of(got) {
            raw::die("KVM_GET_SREGS failed, errno", error as u64);
        }
        sregs
    }
}
