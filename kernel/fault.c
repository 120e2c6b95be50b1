// SPDX-License-Identifier: GPL-2.0
/* Page faults: a page is read into memory, mapped, and made writable. */

#include <linux/file.h>
#include <linux/module.h>
#include <linux/sched/signal.h>

#include "module.h"

/* Another thread was faster, or the page was evicted meanwhile: look again. */
#define LOOK_AGAIN ((__force vm_fault_t)-1)

/*
 * A killed thread may be in a system call, which tries again for ever unless the
 * fault fails.
 */
static vm_fault_t fault_of(int error)
{
	switch (error) {
	case -EAGAIN:
	case -EBUSY:
		return LOOK_AGAIN;
	case -ENOMEM:
		return VM_FAULT_OOM;
	default:
		return VM_FAULT_SIGBUS;
	}
}

/*
 * Drops the lock of a fault before it waits, if that is allowed: a thread that waits
 * for the lock in mmap or munmap would block all other faults. Then the mapping may
 * go, but not the returned file and its attachment, and the fault must end with
 * VM_FAULT_RETRY.
 */
static struct file *unlock_fault(struct vm_fault *vmf)
{
	struct attachment *attachment = vmf->vma->vm_private_data;
	struct file *file;

	if (!fault_flag_allow_retry_first(vmf->flags))
		return NULL;
	file = get_file(vmf->vma->vm_file);
	release_fault_lock(vmf);
	count(attachment->pool, FAULTS_UNLOCKED, 1);
	return file;
}

/* Whether a fault must end, with its lock held, instead of waiting. */
static bool must_not_wait(const struct vm_fault *vmf)
{
	return fault_flag_allow_retry_first(vmf->flags) && vmf->flags & FAULT_FLAG_RETRY_NOWAIT;
}

/*
 * Whether a fault can end instead of waiting with its lock held: the instruction is
 * then tried again.
 */
static bool can_begin_anew(const struct vm_fault *vmf, const struct file *unlocked)
{
	return !unlocked && vmf->flags & FAULT_FLAG_USER;
}

/* How long a fault waits while all pages that it could get are held. */
static unsigned long patience_of(const struct vm_fault *vmf)
{
	return vmf->flags & FAULT_FLAG_USER ? PATIENCE_OF_LOADS : PATIENCE_OF_CALLS;
}

/*
 * There is no page: a system call ends early, or with EFAULT. Not VM_FAULT_OOM, by
 * which the system would look for a process to kill.
 */
static vm_fault_t give_up_fault(struct attachment *attachment)
{
	count(attachment->pool, FAULTS_GIVEN_UP, 1);
	return VM_FAULT_SIGBUS;
}

/* The result of a fault that has waited and whose page is not locked. */
static vm_fault_t waited(struct file *unlocked, int error)
{
	if (!unlocked)
		return error && error != -EAGAIN ? fault_of(error) : VM_FAULT_NOPAGE;
	fput(unlocked);
	return VM_FAULT_RETRY;
}

/* Whether a locked page was not admitted, or is poisoned and would be stored to. */
static bool must_not_be_mapped(const struct vm_fault *vmf, const struct frame *frame)
{
	return frame->arrival || (frame->poisoned && vmf->flags & FAULT_FLAG_WRITE);
}

/* The page is in memory, or is being read by the thread that has it locked. */
static vm_fault_t fault_resident(struct vm_fault *vmf, struct attachment *attachment,
				 struct frame *frame)
{
	int error = frame_lock(frame, attachment, vmf->pgoff, AT_ONCE);

	if (error == -EBUSY) {
		struct file *unlocked;

		if (must_not_wait(vmf))
			return VM_FAULT_RETRY;
		unlocked = unlock_fault(vmf);
		if (can_begin_anew(vmf, unlocked))
			return VM_FAULT_NOPAGE;
		error = frame_lock(frame, attachment, vmf->pgoff, UNTIL_KILLED);
		if (!error && unlocked)
			folio_unlock(frame->folio);
		if (unlocked)
			return waited(unlocked, error);
	}
	if (error)
		return fault_of(error);
	admit_if_fresh(frame);
	if (must_not_be_mapped(vmf, frame)) {
		folio_unlock(frame->folio);
		return VM_FAULT_SIGBUS;
	}
	frame->recent = true;
	folio_get(frame->folio);
	vmf->page = folio_page(frame->folio, 0);
	/* A fault that has waited before has read the page itself. */
	if (!(vmf->flags & FAULT_FLAG_TRIED))
		count(attachment->pool, FAULTS_MINOR, 1);
	return VM_FAULT_LOCKED;
}

static vm_fault_t fault_missing(struct vm_fault *vmf, struct attachment *attachment)
{
	struct file *unlocked = NULL;
	struct frame *frame;
	struct load load;
	int error;

	/* VMIO_INSPECT reads it. */
	if (attachment->verify && !fresh_is(attachment, vmf->pgoff))
		return VM_FAULT_SIGBUS;
	if (must_not_wait(vmf))
		return VM_FAULT_RETRY;
	frame = frame_find(attachment);
	if (!frame) {
		if (frames_are_stuck(attachment, patience_of(vmf)))
			return give_up_fault(attachment);
		unlocked = unlock_fault(vmf);
		if (can_begin_anew(vmf, unlocked))
			return VM_FAULT_NOPAGE;
		return waited(unlocked, wait_for_frame(attachment->pool));
	}
	error = load_begin(&load, attachment, frame, vmf->pgoff);
	if (error)
		return fault_of(error);
	if (load_must_wait(&load))
		unlocked = unlock_fault(vmf);
	error = load_end(&load, vmf->flags & FAULT_FLAG_WRITE);
	if (unlocked) {
		if (!error)
			folio_unlock(frame->folio);
		return waited(unlocked, error) | VM_FAULT_MAJOR;
	}
	if (error)
		return error == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
	if (frame->arrival) {
		/* It was written before it was locked, and is fresh no longer. */
		folio_unlock(frame->folio);
		return VM_FAULT_SIGBUS;
	}
	folio_get(frame->folio);
	vmf->page = folio_page(frame->folio, 0);
	return VM_FAULT_LOCKED | (load.fresh ? 0 : VM_FAULT_MAJOR);
}

static bool must_wait_to_store(struct vm_fault *vmf, struct attachment *attachment,
			       const struct frame *frame)
{
	return vmf->flags & FAULT_FLAG_WRITE && !(frame && READ_ONCE(frame->dirty)) &&
	       has_too_many_dirty(attachment);
}

/* A store would exceed the limit of dirty pages. */
static vm_fault_t fault_waits_to_store(struct vm_fault *vmf, struct attachment *attachment)
{
	struct file *unlocked;

	if (is_failing(attachment))
		return VM_FAULT_SIGBUS;
	if (must_not_wait(vmf))
		return VM_FAULT_RETRY;
	if (stores_are_stalled(attachment, patience_of(vmf)))
		return give_up_fault(attachment);
	unlocked = unlock_fault(vmf);
	if (can_begin_anew(vmf, unlocked))
		return VM_FAULT_NOPAGE;
	return waited(unlocked, wait_for_write_back(attachment));
}

static vm_fault_t mapping_fault(struct vm_fault *vmf)
{
	struct attachment *attachment = vmf->vma->vm_private_data;
	struct shard *shard = &attachment->shards[core_of(attachment, vmf->pgoff)];

	for (;;) {
		struct frame *frame;
		vm_fault_t result;

		if (vmf->pgoff >= attachment_end(attachment))
			return VM_FAULT_SIGBUS;
		frame = xa_load(&shard->pages, vmf->pgoff);
		if (must_wait_to_store(vmf, attachment, frame))
			return fault_waits_to_store(vmf, attachment);
		if (frame)
			result = fault_resident(vmf, attachment, frame);
		else
			result = fault_missing(vmf, attachment);
		if (result != LOOK_AGAIN)
			return result;
		if (fatal_signal_pending(current))
			return VM_FAULT_SIGBUS;
		cond_resched();
	}
}

/*
 * Unmaps the page, so that mapping_fault comes next: that may drop the fault's lock
 * to wait, which page_mkwrite may not.
 */
static vm_fault_t store_anew(struct vm_fault *vmf, struct attachment *attachment)
{
	unmap_mapping_pages(attachment->inode->i_mapping, vmf->pgoff, 1, false);
	return VM_FAULT_NOPAGE;
}

/*
 * The first store since the page was read or written: it becomes dirty before
 * the store can happen, and stays locked until it is writable.
 */
static vm_fault_t mapping_page_mkwrite(struct vm_fault *vmf)
{
	struct attachment *attachment = vmf->vma->vm_private_data;
	struct shard *shard = &attachment->shards[core_of(attachment, vmf->pgoff)];
	struct folio *folio = page_folio(vmf->page);
	struct frame *frame;

	if (vmf->pgoff >= attachment_end(attachment))
		return VM_FAULT_SIGBUS;
	if (!folio_trylock(folio))
		return store_anew(vmf, attachment);
	if (folio->mapping != attachment->inode->i_mapping || folio->index != vmf->pgoff) {
		/* Evicted before it could be locked. */
		folio_unlock(folio);
		return VM_FAULT_NOPAGE;
	}
	frame = folio->private;
	if (frame->poisoned) {
		folio_unlock(folio);
		return VM_FAULT_SIGBUS;
	}
	if (!frame->dirty && has_too_many_dirty(attachment)) {
		folio_unlock(folio);
		return store_anew(vmf, attachment);
	}
	if (!frame->dirty) {
		int error = xa_insert(&shard->dirty, vmf->pgoff, frame, GFP_KERNEL);

		if (error) {
			folio_unlock(folio);
			return VM_FAULT_OOM;
		}
		frame->epoch = atomic64_read(&attachment->epoch);
		frame_requeue(frame, true);
		write_back_if_many(attachment);
	}
	count(attachment->pool, FAULTS_WRITE, 1);
	return VM_FAULT_LOCKED;
}

/*
 * Maps no neighbours. Since Linux 6.7 its existence means that a fault needs only the
 * lock of its VMA, and not mmap_lock.
 */
static vm_fault_t mapping_map_pages(struct vm_fault *vmf, pgoff_t first, pgoff_t last)
{
	return 0;
}

const struct vm_operations_struct mapping_operations = {
	.fault = mapping_fault,
	.map_pages = mapping_map_pages,
	.page_mkwrite = mapping_page_mkwrite,
};
