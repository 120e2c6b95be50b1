# Sorts the samples that `perf script -F comm,ip,sym` prints by what the core did. A sample belongs to its innermost function that a rule
# below names; what the benchmark does to get out of step is left out. Prints each sort's instructions a touch, and its share. How many all are is known from a run without the profiler, but that
# includes the time for which the core was idle: its part is taken to be that of the samples.
# awk -v name=... -v touches=... -v nanoseconds=... -f breakdown.awk

# A rule: the names are whole ones, but for an ending *.
function rule(sort, names, list, count, i) {
    if (!(sort in order)) {
        order[sort] = ++sorts
        name_of[sorts] = sort
    }
    count = split(names, list, " ")
    for (i = 1; i <= count; i++)
        if (sub(/\*$/, "", list[i]))
            of_prefix[list[i]] = sort
        else
            of_name[list[i]] = sort
}

function sort_of(symbol, length_of) {
    sub(/\..*/, "", symbol)
    if (symbol in known)
        return known[symbol]
    known[symbol] = of_name[symbol]
    for (length_of = length(symbol); length_of > 3 && known[symbol] == ""; length_of--)
        known[symbol] = of_prefix[substr(symbol, 1, length_of)]
    return known[symbol]
}

function end_of_sample() {
    if (frames && leaf != "dawdle") {
        total++
        of_sort[sort == "" ? rest : sort]++
    }
    frames = 0
    sort = ""
}

BEGIN {
    rest = "other"
    rule("trap and generic fault", "asm_exc_page_fault exc_page_fault do_user_addr_fault handle_mm_fault __handle_mm_fault do_fault " \
        "do_pte_missing __do_fault do_read_fault do_shared_fault do_wp_page lock_vma_under_rcu lock_mm_and_find_vma find_vma " \
        "irqentry* error_entry error_return native_iret fpregs_assert* mm_account_fault count_memcg_events* down_read* up_read*")
    rule("map neighbours", "filemap_map_pages")
    rule("page tables, reverse map, TLB", "finish_fault set_pte_range do_set_pte wp_page_* finish_mkwrite* unmap_mapping_* zap_* " \
        "unmap_page_range unmap_vmas try_to_unmap* rmap_walk* folio_referenced* folio_mkclean page_mkclean* page_vma_* flush_tlb* " \
        "tlb_* folio_add_file_rmap* folio_remove_rmap* mfill_* mwriteprotect* change_protection* vmf_* pte_offset* __pte_offset* " \
        "zap_page_range* madvise_dontneed* page_table_check*")
    rule("look-up and trees", "xa_* xas_* __xa_* filemap_get_* __filemap_get_folio __filemap_add_folio filemap_add_folio " \
        "filemap_fault frame_lock frame_assign frame_release mapping_fault fault_resident fault_missing __remove_mapping " \
        "__filemap_remove_folio load_begin load_end page_cache_* workingset_* next_dirty next_resident")
    rule("frames and their queues", "alloc_pages* __alloc_pages* folio_alloc* __folio_alloc* filemap_alloc_folio* get_page_from_* " \
        "__mem_cgroup_charge mem_cgroup_* try_charge* charge_memcg uncharge_* __mem_cgroup_uncharge* folio_add_lru* lru_add* " \
        "folio_batch_* free_unref_* __folio_put* folios_put* __folio_batch_release frame_find* take_free frames_free " \
        "frame_enqueue frame_requeue frame_dequeue to_clean refill_obj* folio_mark_accessed free_frozen* free_pages*")
    rule("clear and copy pages", "clear_page_* copy_page* rep_movs_* copy_mc_* copy_highpage")
    rule("eviction", "evict evict_* visit lock_clean frames_visited frame_lock_victim shrink_* isolate_lru_folios " \
        "try_to_free_mem* do_try_to_free* move_folios_to_lru try_to_shrink* lru_gen* lru_note* get_scan_count kswapd* balance_pgdat " \
        "prepare_scan* snapshot_refaults vmpressure*")
    rule("reading and writing", "vfs_iocb_iter_read blkdev_* __blkdev* submit submit_bio* __submit_bio blk_* __blk_* bio_* null_* " \
        "mpage_* read_pages filemap_read_folio do_mpage_* block_read_full_folio backing_read* read_ended backing_write begin run_ended " \
        "__x64_sys_pread64 __x64_sys_preadv* __x64_sys_pwrite* ksys_pread64 submit_bh* end_bio_* end_buffer_* __block_write_full_folio " \
        "kblockd* wbt_* sbitmap_* folio_end_read folio_end_writeback")
    rule("dirty pages, choice of writes", "mapping_page_mkwrite do_page_mkwrite block_page_mkwrite fault_dirty_shared_page " \
        " balance_dirty* folio_mark_dirty* block_dirty_folio __folio_mark_dirty __mark_inode_dirty " \
        "write_back* write_span lock_dirty round_of_writes frame_lock_dirty wb_* writeback_* __writeback* write_cache_pages " \
        "folio_clear_dirty_for_io filemap_dirty_folio file_update_time block_write_full_folio file_start_write* __folio_start_writeback " \
        "do_writepages fresh_* write_batch_*")
    rule("signals", "force_sig* __send_signal* get_signal arch_do_signal_or_restart setup_rt_frame x64_setup_rt_frame " \
        "__x64_sys_rt_sig* __do_sys_rt_sig* restore_sigcontext copy_fpstate_to_* fpu__restore_sig handle_userfault exit_to_user_* " \
        "handle_signal signal_* dequeue_signal collect_signal")
    rule("system calls", "entry_SYSCALL_64* do_syscall_64 syscall_* x64_sys_call __x64_sys_*")
    rule("waiting and waking", "schedule* __schedule futex_* do_futex try_to_wake_up worker_thread process_one_work")
}

NF == 0 { end_of_sample(); next }
/^[^ \t]/ { end_of_sample(); skipped = $1 == "perf" || $1 == "swapper"; idle += $1 == "swapper"; next }
skipped { next }
{
    if (!frames++) {
        leaf = $2
        # Below what the kernel has for itself.
        if ($1 !~ /^ffff/)
            sort = "the program itself"
    }
    if (sort == "" && $1 ~ /^ffff/)
        sort = sort_of($2)
}

END {
    end_of_sample()
    order["the program itself"] = ++sorts
    name_of[sorts] = "the program itself"
    name_of[++sorts] = rest
    each = nanoseconds / touches * total / (total + idle)
    printf "%s: %d ns a touch, %d of it instructions; %d samples\n", name, nanoseconds / touches, each, total
    for (i = 1; i <= sorts; i++)
        printf "    %-32s %6d  %4.1f %%\n", name_of[i], of_sort[name_of[i]] / total * each, of_sort[name_of[i]] * 100 / total
}
