//! Emptying TLBs after pages were unmapped or protected.
//!
//! A virtual processor that may be running guest code gets an interrupt, whose handler empties its TLB. One whose thread is outside, in a system
//! call for instance, is left alone: it finds out before it runs guest code again. Each side writes its own word before it reads the other's, so
//! at least one of the two sees the other.
//!
//! At ring 3 KVM does it: where ring 0 is emulated, the host has page tables of its own in place of the guest's, and sees no change that other code
//! than the guest's makes.

use std::arch::asm;
use std::sync::atomic::{Ordering, fence};

use crate::block::{Block, state};
use crate::descriptors::SHOOTDOWN_VECTOR;
use crate::level::Level;
use crate::machine::{self, Machine};
use crate::raw;

/// Of the local interrupt controller: sends an interrupt.
const INTERRUPT_COMMAND: u32 = 0x830;
const SIGNAL_MSI: u64 = 0x4020_aea5;
/// Where messages for interrupt controllers go.
const MESSAGES: u32 = 0xfee0_0000;
/// Looks at a word before a thread that waits lets others run.
const LOOKS: u32 = 1000;

impl Machine {
    /// Returns when no thread uses a mapping any more that was changed before: one call for any number of pages, from any thread.
    pub fn shootdown(&self) {
        fence(Ordering::SeqCst);
        self.shootdowns.fetch_add(1, Ordering::Relaxed);
        if self.level == Level::Ring3 {
            return self.space.forget_translations();
        }
        let is_at_ring_0 = machine::is_at_ring_0();
        let own = self.own().filter(|_| is_at_ring_0).map(|own| own.block().number);
        if is_at_ring_0 {
            // SAFETY: at ring 0; empties the TLB of the processor that the thread is on now. Were it another than `own`, the thread would have left
            // the machine, and this would be no ring 0.
            unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) _, options(nostack, preserves_flags)) };
        }
        let others = || self.all().map(|vcpu| vcpu.block()).filter(|block| Some(block.number) != own);
        let mut awaits = false;
        for block in others() {
            block.shootdowns_wanted.fetch_add(1, Ordering::SeqCst);
            if block.state.load(Ordering::SeqCst) == state::INSIDE {
                awaits = true;
                if block.shootdown_sent.swap(1, Ordering::SeqCst) == 0 {
                    block.interrupt(is_at_ring_0);
                }
            }
        }
        if awaits {
            others().for_each(Block::wait_for_shootdowns);
        }
    }
}

impl Block {
    /// Before guest code runs: has this processor empty its TLB first, if that was asked for while its thread was outside. By its own thread.
    pub(crate) fn catch_up(&self) {
        if self.shootdowns_wanted.load(Ordering::SeqCst) != self.shootdowns_done.load(Ordering::SeqCst) {
            // Whoever has marked it as sent may not have sent it yet.
            self.shootdown_sent.store(1, Ordering::SeqCst);
            self.interrupt(false);
        }
    }

    /// Returns when this processor has done all shootdowns that others wanted before, or its thread is outside.
    fn wait_for_shootdowns(&self) {
        let wanted = self.shootdowns_wanted.load(Ordering::SeqCst);
        let mut looks = 0;
        while self.shootdowns_done.load(Ordering::SeqCst) < wanted && self.state.load(Ordering::SeqCst) == state::INSIDE
        {
            std::hint::spin_loop();
            looks += 1;
            if looks == LOOKS {
                looks = 0;
                // The host may have taken the core away from it.
                // SAFETY: touches no memory.
                unsafe { raw::call(libc::SYS_sched_yield as u64, [0; 6]) };
            }
        }
    }

    /// Sends the interrupt, by the processor itself if the caller is at ring 0.
    fn interrupt(&self, is_at_ring_0: bool) {
        let number = self.number;
        if is_at_ring_0 {
            // SAFETY: at ring 0; the register sends an interrupt whose handler changes nothing that a program sees.
            unsafe {
                asm!(
                    "wrmsr",
                    in("ecx") INTERRUPT_COMMAND,
                    in("eax") u32::from(SHOOTDOWN_VECTOR),
                    in("edx") number,
                    options(nostack, preserves_flags)
                );
            }
            return;
        }
        let message = kvm_bindings::kvm_msi {
            address_lo: MESSAGES | (number & 0xff) << 12,
            address_hi: number & !0xff,
            data: u32::from(SHOOTDOWN_VECTOR),
            ..Default::default()
        };
        // SAFETY: KVM reads the structure, and sends an interrupt whose handler changes nothing that a program sees.
        let answer = unsafe { raw::ioctl(self.machine.space.machine(), SIGNAL_MSI, &raw const message as u64) };
        if let Some(error) = raw::error_of(answer) {
            raw::die("KVM_SIGNAL_MSI failed, errno", error as u64);
        }
    }
}
