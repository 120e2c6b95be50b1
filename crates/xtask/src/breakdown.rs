//! A breakdown of a guest's instructions, which QEMU counts by address: by function, and by the purpose of the functions.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::guest::Guest;
use crate::lab::{lab_folder, output, run, workspace};

/// Where a program lies that is not linked to an address, if the kernel chooses none at random; its libraries lie elsewhere.
const PROGRAM: Range<u64> = 0x5555_5555_4000..0x5556_0000_0000;
/// How many of the largest functions are printed.
const LARGEST: usize = 25;

/// What functions are for. Names are whole ones but for an ending `*`; of those that match the longest counts.
const SORTS: [(&str, &str); 20] = [
    (
        "trap and generic fault",
        "asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault do_fault do_pte_missing __do_fault \
         do_read_fault do_shared_fault do_wp_page lock_vma_under_rcu lock_mm_and_find_vma find_vma irqentry* error_entry error_return \
         native_iret* fpregs_assert* mm_account_fault down_read* up_read* common_interrupt_return sync_regs \
         restore_regs* mt_find mas_walk access_error vm_normal_page __irqentry* arch_exit_to_user*",
    ),
    ("map neighbours", "filemap_map_* mapping_map_pages next_uptodate_folio do_fault_around"),
    (
        "locks, lists, the kernel's allocators",
        "_raw_spin_* _raw_read_* _raw_write_* __rcu_read_* rcu_* __list_* kmem_cache_* __slab_* ___slab_* kmalloc* kfree* mutex_* \
         __cond_resched preempt_* native_queued_spin_* queued_spin_* up_* down_* percpu_ref_* __radix_tree_lookup _find_*",
    ),
    (
        "memory cgroups and statistics",
        "__cgroup_rstat_updated __memcg_* mod_objcg_state obj_cgroup_* refill_stock __count_memcg_events count_memcg_events* \
         mod_node_page_state mod_zone_page_state __mod_* __lruvec_* lruvec_* mod_memcg* get_mem_cgroup_from_mm page_counter_* \
         mem_cgroup_* __mem_cgroup_* try_charge* charge_memcg uncharge_*",
    ),
    (
        "page tables, reverse map, TLB",
        "finish_fault set_pte_range do_set_pte wp_page_* finish_mkwrite* unmap_mapping_* zap_* unmap_page_range unmap_vmas \
         unmap_single_vma try_to_unmap* rmap_walk* folio_referenced* folio_mkclean page_mkclean* page_vma_* flush_tlb* native_flush_tlb* \
         tlb_* folio_add_file_rmap* folio_remove_rmap* mfill_* mwriteprotect* change_protection* vmf_* pte_offset* __pte_offset* \
         madvise_* do_madvise page_table_check* vma_interval_tree* folio_add_new_anon* native_set_pte* __tlb* invlpgb*",
    ),
    (
        "look-up and trees",
        "xa_* xas_* __xa_* __xas_* filemap_get_* __filemap_get_folio __filemap_add_folio filemap_add_folio filemap_fault frame_lock \
         frame_assign frame_release mapping_fault fault_resident fault_missing __remove_mapping __filemap_remove_folio load_begin \
         load_end page_cache_* workingset_* next_dirty next_resident \
         erase_of_span folio_mapping mtree_load",
    ),
    (
        "frames and their queues",
        "alloc_pages* __alloc_pages* folio_alloc* __folio_alloc* filemap_alloc_folio* get_page_from_* rmqueue* folio_add_lru* \
         lru_add* folio_batch_* free_unref_* __folio_put* folios_put* __folio_batch_release frame_find* take_free frames_free \
         frame_enqueue frame_requeue frame_dequeue to_clean refill_* folio_mark_accessed free_frozen* free_pages* \
         free_pcppages* __rmqueue_pcplist __folio_batch_add_and_move __page_cache_release get_pfnblock_flags_mask \
         cond_accept_memory policy_nodemask vma_alloc_folio_noprof get_vma_policy take",
    ),
    (
        "clear and copy pages",
        "clear_page_* copy_page* rep_movs_* copy_mc_* copy_highpage memset* memcpy* __memset __memcpy",
    ),
    (
        "eviction",
        "evict evict_* visit lock_clean frames_visited frame_lock_victim judge shrink_* isolate_lru_folios try_to_free_mem* \
         do_try_to_free* move_folios_to_lru try_to_shrink* lru_gen* lru_note* get_scan_count kswapd* balance_pgdat prepare_scan* \
         snapshot_refaults vmpressure* scan_folios evict_folios try_to_inc_max_seq walk_* \
         isolate_folios filemap_release_folio",
    ),
    (
        "reading and writing",
        "vfs_iocb_iter_read blkdev_* __blkdev* submit submit_bio* __submit_bio blk_* __blk_* bio_* null_* mpage_* read_pages \
         filemap_read_folio do_mpage_* block_read_full_folio backing_read* read_ended backing_write begin run_ended __x64_sys_pread64 \
         __x64_sys_preadv* __x64_sys_pwrite* ksys_pread64 submit_bh* end_bio_* end_buffer_* __block_write_full_folio kblockd* wbt_* \
         sbitmap_* folio_end_read folio_end_writeback iov_iter_* bvec_* kiocb_* mempool_* task_io_account* file_start_write* \
         invalidate_inode_pages2* filemap_write_and_wait* filemap_range_has* filemap_invalidate* ktime_get* __bio_* block_write_end \
         folio_unlock folio_wake_bit wake_page_function complete complete_* wait_for_completion* create_empty_buffers \
         vfs_read vfs_write atime_needs_update touch_atime current_time timestamp_truncate fdget rw_verify_area security_file_* \
         apparmor_file_* aa_file_perm __wait_for_common rq_qos_* __rq_qos_* I_BDEV guard_bio_eod kthread_blkcg __folio_end_writeback \
         try_to_free_buffers drop_buffers wake_up_bit gup_* try_grab_folio* is_valid_gup_args pin_user_pages*",
    ),
    (
        "dirty pages, choice of writes",
        "mapping_page_mkwrite do_page_mkwrite block_page_mkwrite fault_dirty_shared_page balance_dirty* folio_mark_dirty* \
         block_dirty_folio __folio_mark_dirty __mark_inode_dirty write_back* write_span lock_dirty round_of_writes frame_lock_dirty \
         wb_* writeback_* __writeback* write_cache_pages folio_clear_dirty_for_io filemap_dirty_folio file_update_time \
         block_write_full_folio __folio_start_writeback do_writepages fresh_* write_batch_* dirty_pages should_write domain_dirty* \
         inode_* has_too_many_dirty __wb_* percpu_counter* fprop_*",
    ),
    (
        "signals",
        "force_sig* __send_signal* get_signal arch_do_signal_or_restart setup_rt_frame x64_setup_rt_frame __x64_sys_rt_sig* \
         __do_sys_rt_sig* restore_sigcontext copy_fpstate_to_* fpu__restore_sig handle_userfault* exit_to_user_* handle_signal signal_* \
         dequeue_signal collect_signal __restore_fpregs* __sigqueue* \
         __fpu_restore_sig get_sigframe prepare_signal recalc_sigpending send_signal_locked do_sigaltstack restore_altstack fpu__* \
         fpregs_* __rseq_* inc_rlimit* do_dec_rlimit* copy_siginfo* __set_task_blocked userfaultfd_*",
    ),
    ("the trap at ring 0", "ring0_stub* vmio_ring0::faults* vmio::engine::ring0_engine*"),
    (
        "the miss in the cache",
        "vmio::cache::fault* vmio::cache::load* vmio::cache* vmio_core* vmio::policy* <vmio::policy* vmio::telemetry* core::* vmio::mapping*",
    ),
    ("the device at ring 0", "pm_vmio_* vmio::sys::persistent_* vmio::backing* <vmio::backing*"),
    ("frames and page tables at ring 0", "vmio_ring0::* vmio::engine* <vmio::engine*"),
    ("the clock, and histograms", "<vmio::telemetry* std::time* <std::time* <std::sys* core::time*"),
    (
        "eviction and write-back of the cache",
        "vmio::cache::evict* vmio::cache::collect* vmio::cache::write* vmio::cache::shared* vmio::cache::region::Region::finish_evict* \
         vmio::cache::direct_reclaim* <vmio::policy::priority_fifo* <vmio::cache* crossbeam* vmio_ring0::managed::Pages::unmap* \
         vmio_ring0::managed::Pages::hide* vmio_ring0::managed::Pages::protect* core::ops::function*",
    ),
    ("system calls", "entry_SYSCALL_64* do_syscall_64 syscall_* x64_sys_call __x64_sys_*"),
    (
        "waiting, waking, the timer",
        "schedule* __schedule futex_* do_futex try_to_wake_up worker_thread process_one_work queue_*work* __queue_work* \
         enqueue_* dequeue_* pick_* update_* sched_* tick_* hrtimer_* timekeeping_* run_* handle_softirqs \
         __switch_to* asm_sysvec_* sysvec_* perf_* task_tick* finish_task* default_idle* cpuidle_* do_idle \
         do_vfs_ioctl tomoyo_* _copy_from_user",
    ),
];
const THE_PROGRAM: &str = "the program itself";
const LIBRARIES: &str = "libraries: copies, and the clock";
const OTHER: &str = "other";

/// Compiles the plugin of QEMU that counts: tests/vm/qemu/instructions.c.
pub(crate) fn plugin() -> Result<PathBuf> {
    let plugin = lab_folder()?.join("instructions.so");
    let source = workspace().join("tests/vm/qemu/instructions.c");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]).arg(&plugin).arg(source);
    run(&mut cc)?;
    Ok(plugin)
}

/// Counts what a script's programs do in the kernel, and prints it if the script succeeds.
pub(crate) fn of_kernel(guest: Guest, script: &str) -> Result<u8> {
    count(guest, script, "")
}

/// The same, with the functions of a program.
pub(crate) fn of_program(guest: Guest, script: &str, program: &Path) -> Result<u8> {
    let listed = output(Command::new("nm").args(["--numeric-sort", "--demangle"]).arg(program))?;
    count(guest, script, &listed)
}

fn count(guest: Guest, script: &str, listed: &str) -> Result<u8> {
    let guest = guest.counting()?;
    let status = guest.run(script)?;
    if status == 0 {
        print(guest.out(), listed)?;
    }
    Ok(status)
}

/// Prints what the plugin has left in a folder, run by run, beside the guest's own lines about them (`runs`) and its symbols. A program's symbols
/// are listed as nm does.
fn print(folder: &Path, listed: &str) -> Result<()> {
    let read = |name: &str| {
        fs::read_to_string(folder.join(name)).with_context(|| format!("the guest has left no {name}: see what it said"))
    };
    let (counted, said, symbols) = (read("instructions")?, read("runs")?, read("symbols")?);
    let mut symbols = symbols_of(&symbols, 0)?;
    if !listed.is_empty() {
        symbols.append(&mut symbols_of(listed, PROGRAM.start)?);
        symbols.insert(PROGRAM.end, LIBRARIES);
    }
    let runs: Vec<&str> = counted.split("run\n").skip(1).collect();
    ensure!(runs.len() == said.lines().count(), "{} runs were counted of {}", runs.len(), said.lines().count());
    for (run, line) in runs.iter().zip(said.lines()) {
        let words: Vec<&str> = line.split(' ').collect();
        let touches = words.iter().skip_while(|word| **word != "touches").nth(1).and_then(|number| number.parse().ok());
        let touches: u64 = touches.with_context(|| format!("no number of touches in: {line}"))?;
        print_run(line, &by_function(run, &symbols)?, touches);
    }
    Ok(())
}

fn print_run(line: &str, functions: &HashMap<&str, u64>, touches: u64) {
    let sorts = Sorts::new();
    let all: u64 = functions.values().sum();
    let mut of_sort = BTreeMap::<&str, u64>::new();
    for (function, count) in functions {
        *of_sort.entry(sorts.of(function)).or_default() += count;
    }
    let show = |name: &str, count: u64| {
        println!("    {name:<34} {:>7}  {:>4.1} %", count / touches, count as f64 * 100.0 / all as f64);
    };
    println!("{line}\n  {} instructions a touch", all / touches);
    for name in SORTS.iter().map(|(name, _)| *name).chain([THE_PROGRAM, LIBRARIES, OTHER]) {
        show(name, of_sort.get(name).copied().unwrap_or_default());
    }
    println!("  of these");
    let mut largest: Vec<_> = functions.iter().collect();
    largest.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), **name));
    for (name, count) in largest.into_iter().take(LARGEST) {
        show(name, *count);
    }
}

/// The functions of /proc/kallsyms, or of nm, by address.
fn symbols_of(text: &str, base: u64) -> Result<BTreeMap<u64, &str>> {
    let mut symbols = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.splitn(3, ' ');
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next()) else { continue };
        if kind.eq_ignore_ascii_case("t") {
            let address = base + u64::from_str_radix(address, 16).with_context(|| format!("no symbol: {line}"))?;
            // A module's name follows its functions', a hash those of Rust.
            let name = name.split('\t').next().unwrap_or(name);
            let is_hash = |hash: &str| hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
            let name = name.rsplit_once("::h").filter(|(_, hash)| is_hash(hash)).map_or(name, |(name, _)| name);
            // What the compiler has split off belongs to it.
            symbols.insert(address, name.split('.').next().unwrap_or(name));
        }
    }
    Ok(symbols)
}

/// Sums up the blocks of a run.
fn by_function<'symbols>(run: &str, symbols: &BTreeMap<u64, &'symbols str>) -> Result<HashMap<&'symbols str, u64>> {
    let mut functions = HashMap::new();
    for line in run.lines() {
        let block = line
            .split_once(' ')
            .and_then(|(address, count)| Some((u64::from_str_radix(address, 16).ok()?, count.parse::<u64>().ok()?)));
        let (address, count) = block.with_context(|| format!("no block of code: {line}"))?;
        let name = symbols.range(..=address).next_back().map_or(THE_PROGRAM, |(_, name)| name);
        *functions.entry(name).or_default() += count;
    }
    Ok(functions)
}

/// The table above, to look names up in.
struct Sorts(HashMap<&'static str, &'static str>);

impl Sorts {
    fn new() -> Self {
        let rules =
            SORTS.iter().flat_map(|(sort, names)| names.split_ascii_whitespace().map(move |name| (name, *sort)));
        Sorts(rules.collect())
    }

    fn of(&self, function: &str) -> &'static str {
        if let Some(whole) = [THE_PROGRAM, LIBRARIES].into_iter().find(|whole| *whole == function) {
            return whole;
        }
        let prefixes = (1..=function.len()).rev().map(|len| format!("{}*", &function[..len]));
        let found = [function.to_owned()].into_iter().chain(prefixes).find_map(|name| self.0.get(name.as_str()));
        found.copied().unwrap_or(OTHER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_those_of_the_symbol_before_them() -> Result<()> {
        let symbols = symbols_of(
            "ffffffff81000000 T xa_load\nffffffff81000100 t visit.isra.0\t[vmio]\nffffffff81000180 d data\n",
            0,
        )?;
        let functions =
            by_function("ffffffff810000ff 7\nffffffff81000100 5\nffffffff81000190 1\n401000 9\n", &symbols)?;
        assert_eq!(functions, HashMap::from([("xa_load", 7), ("visit", 6), (THE_PROGRAM, 9)]));
        Ok(())
    }

    #[test]
    fn functions_of_a_program_go_without_what_tells_them_apart() -> Result<()> {
        let listed = "0000000000001000 t vmio::Pages::hide::h0123456789abcdef\n0000000000002000 T vmio::Pages::hide\n";
        let names: Vec<_> = symbols_of(listed, PROGRAM.start)?.into_iter().collect();
        assert_eq!(names, [0x1000, 0x2000].map(|offset| (PROGRAM.start + offset, "vmio::Pages::hide")));
        Ok(())
    }

    #[test]
    fn no_name_is_in_two_sorts() {
        let names = SORTS.iter().flat_map(|(_, names)| names.split_ascii_whitespace()).collect::<Vec<_>>();
        let twice = names.iter().enumerate().filter(|(at, name)| names[..*at].contains(name));
        assert_eq!(twice.map(|(_, name)| *name).collect::<Vec<_>>(), Vec::<&str>::new());
    }

    #[test]
    fn the_longest_name_says_what_a_function_is_for() {
        let sorts = Sorts::new();
        assert_eq!(sorts.of("xa_load"), "look-up and trees");
        assert_eq!(sorts.of("evict"), "eviction");
        assert_eq!(sorts.of("folio_mark_dirty_lock"), "dirty pages, choice of writes");
        assert_eq!(
            sorts.of("vmio::cache::evict::<impl vmio::cache::evictor::Evictor>::pass"),
            "eviction and write-back of the cache"
        );
        assert_eq!((sorts.of(THE_PROGRAM), sorts.of(LIBRARIES), sorts.of("x")), (THE_PROGRAM, LIBRARIES, OTHER));
    }
}
