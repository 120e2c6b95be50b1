// SPDX-License-Identifier: GPL-2.0
/*
 * One TLB flush for pages far from each other, if the parameter batch_flushes asks
 * for it: they go out of the page tables one by one, and all flushes come at the end.
 * It is how the kernel reclaims pages, by functions that it does not export: kprobes
 * tell where they are.
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
 * Direct calls: where branches by pointer are checked (IBT), these functions may not
 * be their target, since nobody takes their address.
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
 * Takes a page, whose folio is locked, out of the page tables. Until flush_unmapped, by
 * the same thread, processors may still load from it: it must stay what it is, locked. They
 * may not store to it, if it is clean: no entry that they know is writable.
 */
void unmap_without_flush(struct folio *folio)
{
	static_call(vmio_unmap)(folio, TTU_BATCH_FLUSH | TTU_IGNORE_MLOCK);
}

void flush_unmapped(void)
{
	static_call(vmio_flush)();
}
