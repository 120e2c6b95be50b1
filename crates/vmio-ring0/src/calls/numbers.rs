//! The numbers of calls that the libc crate does not have.

#![allow(non_upper_case_globals, reason = "as the libc crate has the others")]

pub(super) const SYS_create_module: i64 = 174;
pub(super) const SYS_get_kernel_syms: i64 = 177;
pub(super) const SYS_query_module: i64 = 178;
pub(super) const SYS_io_pgetevents: i64 = 333;
pub(super) const SYS_uretprobe: i64 = 335;
pub(super) const SYS_uprobe: i64 = 336;
pub(super) const SYS_cachestat: i64 = 451;
pub(super) const SYS_map_shadow_stack: i64 = 453;
pub(super) const SYS_futex_wake: i64 = 454;
pub(super) const SYS_futex_wait: i64 = 455;
pub(super) const SYS_futex_requeue: i64 = 456;
pub(super) const SYS_statmount: i64 = 457;
pub(super) const SYS_listmount: i64 = 458;
pub(super) const SYS_lsm_get_self_attr: i64 = 459;
pub(super) const SYS_lsm_set_self_attr: i64 = 460;
pub(super) const SYS_lsm_list_modules: i64 = 461;
pub(super) const SYS_setxattrat: i64 = 463;
pub(super) const SYS_getxattrat: i64 = 464;
pub(super) const SYS_listxattrat: i64 = 465;
pub(super) const SYS_removexattrat: i64 = 466;
pub(super) const SYS_open_tree_attr: i64 = 467;
pub(super) const SYS_file_getattr: i64 = 468;
pub(super) const SYS_file_setattr: i64 = 469;

/// The calls of Linux 6.18: up to the first number, and from the second to the third.
#[cfg(test)]
pub(super) const ALL: [std::ops::RangeInclusive<i64>; 2] = [0..=SYS_uprobe, 424..=SYS_file_setattr];
