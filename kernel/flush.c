// SPDX-License-Identifier: GPL-2.0
/*
 * Batched TLB flushes for scattered pages, with the parameter batch_flushes: the pages
 * are unmapped one by one, with one flush for all at the end. The kernel reclaims
 * pages so, by functions that it does not export: kprobes find their addresses.
 */

#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/rmap.h>
#include <linux/static_call.h>

#include "module.h"

static bool batch_flushes;
module_param(batch_flushes, bool, 0444);
MODULE_PARM_DESC(batch_flushes,
		 "Evict pages of several spans with one TLB flush, by functions that are not exported");

/*
 * Direct calls: with indirect branch tracking (IBT) an indirect call of these functions
 * would fail, since nobody takes their address.
 */
DEFINE_STATIC_CALL_NULL(vmio_unmap, try_to_unmap);
DEFINE_STATIC_CALL_NULL(vmio_flush, void (void));

static void *address_of(const char *function)
{
	struct kprobe probe = { .symbol_name = function, .flags = KPROBE_FLAG_DISABLED };
	int error = register_kprobe(&probe);

	if (error) {
		pr_warn("vmio: no batched flushes: looking for %s: %d\n", function, error);
		return NULL;
	}
	unregister_kprobe(&probe);
	return probe.addr;
}

void flush_init(void)
{
	void *unmap, *flush;

	if (!batch_flushes)
		return;
	batch_flushes = false;
	if (!IS_ENABLED(CONFIG_HAVE_STATIC_CALL)) {
		pr_warn("vmio: no batched flushes: this kernel has no static calls\n");
		return;
	}
	unmap = address_of("try_to_unmap");
	flush = address_of("try_to_unmap_flush");
	if (!unmap || !flush)
		return;
	static_call_update(vmio_unmap, unmap);
	static_call_update(vmio_flush, flush);
	batch_flushes = true;
}

bool flushes_are_batched(void)
{
	return batch_flushes;
}

/*
 * Unmaps a page, whose folio is locked. Until the same thread calls flush_unmapped,
 * processors may still load from the page: it must stay locked and unchanged. They
 * cannot store to it if it is clean, since no TLB entry for it is writable.
 */
void unmap_without_flush(struct folio *folio)
{
	static_call(vmio_unmap)(folio, TTU_BATCH_FLUSH | TTU_IGNORE_MLOCK);
}

void flush_unmapped(void)
{
	static_call(vmio_flush)();
}
