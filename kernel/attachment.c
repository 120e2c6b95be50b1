// SPDX-License-Identifier: GPL-2.0
/* Attachments: their descriptors, and how they come and go. */

#include <linux/blkdev.h>
#include <linux/file.h>
#include <linux/fs_context.h>
#include <linux/module.h>
#include <linux/mount.h>
#include <linux/pseudo_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>

#include "module.h"

#define VMIO_MAGIC 0x766d696f
/*
 * With very few pages, threads and instructions that need several pages would take them
 * from each other for ever.
 */
#define LIMIT_PAGES_MIN 64UL

static int init_inodes(struct fs_context *context)
{
	if (!init_pseudo(context, VMIO_MAGIC))
		return -ENOMEM;
	/* The backing's file system may be mounted noexec: no code runs from our mappings. */
	context->s_iflags |= SB_I_NOEXEC | SB_I_NODEV;
	return 0;
}

static struct file_system_type inodes_type = {
	.name = "vmio",
	.owner = THIS_MODULE,
	.init_fs_context = init_inodes,
	.kill_sb = kill_anon_super,
};

/*
 * Our own inodes, so that each attachment has its own address space. Mounted while
 * there is an attachment or a descriptor of one; the module stays as long.
 */
static struct vfsmount *inodes;
static int inodes_pinned;

static DEFINE_MUTEX(registry_lock);
static LIST_HEAD(registry);
/* The number of attachments that have gone; registry_lock. */
static unsigned long closings;
static DECLARE_WAIT_QUEUE_HEAD(closed);

/* A dirty bit in a page table needs no handling: page_mkwrite was called before. */
static const struct address_space_operations address_space_operations = {
	.dirty_folio = noop_dirty_folio,
};

/*
 * Drops all pages from an index on, dirty or not. A page that is faulted in again
 * meanwhile may be missed.
 */
static void drop_from(struct attachment *attachment, pgoff_t first)
{
	struct pool *pool = attachment->pool;
	unsigned int core;

	unmap_mapping_pages(attachment->inode->i_mapping, first, 0, false);
	for (core = 0; core < pool->core_count; core++) {
		struct shard *shard = &attachment->shards[core];
		struct frame *frame;
		unsigned long index;

		xa_for_each_start(&shard->pages, index, frame, first) {
			LIST_HEAD(free);

			if (frame_lock(frame, attachment, index, AS_LONG_AS_IT_TAKES))
				continue;
			/* It may have been mapped again before it was locked. */
			unmap_mapping_pages(attachment->inode->i_mapping, index, 1, false);
			if (frame->dirty) {
				xa_erase(&shard->dirty, index);
				frame_requeue(frame, false);
			}
			frame_dequeue(frame, &free);
			xa_erase(&shard->pages, index);
			frame_release(frame);
			if (folio_ref_count(frame->folio) != 1)
				frame_replace_page(frame);
			folio_unlock(frame->folio);
			frames_free(pool, &free);
			cond_resched();
		}
	}
}

static pgoff_t pages_of(const struct attachment *attachment)
{
	return DIV_ROUND_UP_ULL(i_size_read(attachment->host), PAGE_SIZE);
}

/*
 * The number of pages that the backing has now. If it was cut since, the pages behind
 * its end are dropped, so that they read as zeros if it becomes longer again.
 */
pgoff_t attachment_end(struct attachment *attachment)
{
	pgoff_t end = pages_of(attachment);

	if (likely(end == READ_ONCE(attachment->end)))
		return end;
	mutex_lock(&attachment->end_lock);
	end = pages_of(attachment);
	if (end < attachment->end) {
		/*
		 * First: a fault that finds the backing longer again then waits for end_lock, and
		 * its stores are not dropped.
		 */
		WRITE_ONCE(attachment->end, end);
		drop_from(attachment, end);
	}
	WRITE_ONCE(attachment->end, end);
	mutex_unlock(&attachment->end_lock);
	return end;
}

static void attachment_free(struct attachment *attachment)
{
	struct pool *pool = attachment->pool;

	spin_lock(&pool->lock);
	list_del(&attachment->of_pool);
	spin_unlock(&pool->lock);
	/* Nobody queues it again. */
	cancel_delayed_work_sync(&attachment->write_back);
	if (attachment->inode) {
		iput(attachment->inode);
		simple_release_fs(&inodes, &inodes_pinned);
	}
	if (attachment->writer)
		fput(attachment->writer);
	fput(attachment->reader);
	kvfree(attachment->shards);
	mtree_destroy(&attachment->priorities);
	fresh_free(attachment);
	pool_put(pool);
	kfree(attachment);
}

static struct attachment *attachment_new(struct pool *pool, struct file *file, bool verify,
					 unsigned long limit)
{
	struct attachment *attachment = kzalloc(sizeof(*attachment), GFP_KERNEL_ACCOUNT);
	unsigned int core;

	if (!attachment)
		return ERR_PTR(-ENOMEM);
	pool_get(pool);
	attachment->pool = pool;
	attachment->reader = get_file(file);
	attachment->host = file->f_mapping->host;
	attachment->limit = limit ? max(limit, LIMIT_PAGES_MIN) : ULONG_MAX;
	attachment->verify = verify;
	INIT_DELAYED_WORK(&attachment->write_back, write_back);
	INIT_LIST_HEAD(&attachment->of_pool);
	mutex_init(&attachment->end_lock);
	/* Faults look priorities up while they are being changed. */
	mt_init_flags(&attachment->priorities, MT_FLAGS_USE_RCU);
	xa_init_flags(&attachment->fresh, XA_FLAGS_ACCOUNT);
	attachment->end = pages_of(attachment);
	attachment->shards = kvcalloc(pool->core_count, sizeof(*attachment->shards),
				      GFP_KERNEL_ACCOUNT);
	if (!attachment->shards)
		goto failed;
	for (core = 0; core < pool->core_count; core++) {
		xa_init_flags(&attachment->shards[core].pages, XA_FLAGS_ACCOUNT);
		xa_init_flags(&attachment->shards[core].dirty, XA_FLAGS_ACCOUNT);
		INIT_LIST_HEAD(&attachment->shards[core].dirty_queue);
	}
	if (simple_pin_fs(&inodes_type, &inodes, &inodes_pinned))
		goto failed;
	attachment->inode = alloc_anon_inode(inodes->mnt_sb);
	if (IS_ERR(attachment->inode)) {
		attachment->inode = NULL;
		simple_release_fs(&inodes, &inodes_pinned);
		goto failed;
	}
	attachment->inode->i_mapping->a_ops = &address_space_operations;
	i_size_write(attachment->inode, i_size_read(attachment->host));
	spin_lock(&pool->lock);
	list_add(&attachment->of_pool, &pool->attachments);
	spin_unlock(&pool->lock);
	return attachment;
failed:
	attachment_free(attachment);
	return ERR_PTR(-ENOMEM);
}

/* The attachment of a backing, or NULL. registry_lock is held. */
static struct attachment *find(struct inode *host)
{
	struct attachment *attachment;

	list_for_each_entry(attachment, &registry, registered)
		if (attachment->host == host)
			return attachment;
	return NULL;
}

/*
 * Prints a line for each attachment: its backing, pages in memory, dirty pages, its
 * limit, the pages of its pool, and failures in a row.
 */
void show_attachments(struct seq_file *seq)
{
	struct attachment *attachment;

	mutex_lock(&registry_lock);
	list_for_each_entry(attachment, &registry, registered) {
		struct inode *host = attachment->host;

		if (S_ISBLK(host->i_mode))
			seq_printf(seq, "%pg", I_BDEV(host));
		else
			seq_printf(seq, "%s:%llu", host->i_sb->s_id, (u64)host->i_ino);
		seq_printf(seq, " resident %ld dirty %ld limit %lu pool %lu failures %u\n",
			   atomic_long_read(&attachment->resident),
			   atomic_long_read(&attachment->dirty),
			   resident_max(attachment), READ_ONCE(attachment->pool->frame_count),
			   READ_ONCE(attachment->failures));
	}
	mutex_unlock(&registry_lock);
}

/* Finds or makes the attachment of a backing, and counts a user. */
static struct attachment *join(struct pool *pool, struct file *file, bool verify,
			       unsigned long limit)
{
	struct inode *host = file->f_mapping->host;
	struct attachment *attachment;

	for (;;) {
		unsigned long seen;
		int error;

		mutex_lock(&registry_lock);
		attachment = find(host);
		if (!attachment || !attachment->closing)
			break;
		seen = closings;
		mutex_unlock(&registry_lock);
		/* Its last writes must be done before the backing is read. */
		error = wait_event_killable(closed, READ_ONCE(closings) != seen);
		if (error)
			return ERR_PTR(error);
	}
	if (!attachment) {
		attachment = attachment_new(pool, file, verify, limit);
		if (!IS_ERR(attachment))
			list_add(&attachment->registered, &registry);
	} else if (attachment->verify != verify || (verify && attachment->pool != pool)) {
		attachment = ERR_PTR(-EBUSY);
	}
	if (!IS_ERR(attachment)) {
		attachment->users++;
		if (file->f_mode & FMODE_WRITE && !attachment->writer)
			WRITE_ONCE(attachment->writer, get_file(file));
	}
	mutex_unlock(&registry_lock);
	return attachment;
}

/* Uncounts a user. The last one writes all dirty pages and frees the attachment. */
static void detach(struct attachment *attachment)
{
	bool last;
	int error;

	mutex_lock(&registry_lock);
	last = --attachment->users == 0;
	attachment->closing = last;
	mutex_unlock(&registry_lock);
	if (!last)
		return;
	attachment_end(attachment);
	error = write_dirty(attachment, 0, ULONG_MAX);
	if (error)
		pr_err("vmio: stores to %s are lost: error %d\n", attachment->host->i_sb->s_id,
		       error);
	drop_from(attachment, 0);
	/* An evictor that took the last page out of the tree may still be using it. */
	while (atomic_long_read_acquire(&attachment->resident))
		schedule_timeout_uninterruptible(1);
	mutex_lock(&registry_lock);
	list_del(&attachment->registered);
	WRITE_ONCE(closings, closings + 1);
	mutex_unlock(&registry_lock);
	wake_up_all(&closed);
	attachment_free(attachment);
}

static int attachment_mmap(struct file *file, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_MAYSHARE))
		return -EINVAL;
	vma->vm_private_data = file->private_data;
	vma->vm_ops = &mapping_operations;
	/*
	 * VM_DONTEXPAND also excludes mlock, KSM and khugepaged: the pool alone decides
	 * which pages are in memory.
	 */
	vm_flags_set(vma, VM_DONTEXPAND | VM_DONTDUMP);
	return 0;
}

/* fsync, and msync with MS_SYNC. */
static int attachment_fsync(struct file *file, loff_t start, loff_t end, int data_only)
{
	struct attachment *attachment = file->private_data;
	struct file *writer = READ_ONCE(attachment->writer);
	int error;

	if (!writer)
		return 0;
	attachment_end(attachment);
	error = write_dirty(attachment, start >> PAGE_SHIFT, (u64)end >> PAGE_SHIFT);
	if (error)
		return error;
	error = vfs_fsync_range(writer, start, end, data_only);
	/* From then on nobody knows which earlier writes the device has. */
	if (error)
		WRITE_ONCE(attachment->flush_error, error);
	return READ_ONCE(attachment->flush_error);
}

static int attachment_release(struct inode *inode, struct file *file)
{
	detach(file->private_data);
	return 0;
}

const struct file_operations attachment_file_operations = {
	.owner = THIS_MODULE,
	.mmap = attachment_mmap,
	.fsync = attachment_fsync,
	.release = attachment_release,
	.unlocked_ioctl = attachment_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

/* The block size of the backing's device, or 1 if it has none. */
static unsigned int logical_block_bytes(struct inode *host)
{
	struct block_device *device = S_ISBLK(host->i_mode) ? I_BDEV(host) : host->i_sb->s_bdev;

	return device ? bdev_logical_block_size(device) : 1;
}

static int may_attach(const struct file *file)
{
	umode_t mode = file->f_mapping->host->i_mode;

	if (!(file->f_mode & FMODE_READ))
		return -EBADF;
	if (!(file->f_mode & FMODE_CAN_READ) ||
	    (file->f_mode & FMODE_WRITE && !(file->f_mode & FMODE_CAN_WRITE)))
		return -EINVAL;
	/* As in mmap: a store would not append. */
	if (file->f_mode & FMODE_WRITE && IS_APPEND(file_inode(file)))
		return -EACCES;
	if (!(file->f_flags & O_DIRECT) || file->f_op == &attachment_file_operations)
		return -EINVAL;
	if (!S_ISREG(mode) && !S_ISBLK(mode))
		return -EINVAL;
	/* Freeze protection of a lower file system would be taken after folio locks: a deadlock. */
	if (file_inode(file)->i_sb->s_stack_depth)
		return -EOPNOTSUPP;
	/* Single pages are read and written. */
	return logical_block_bytes(file->f_mapping->host) <= PAGE_SIZE ? 0 : -EINVAL;
}

/* A file for mappings of an attachment; it holds a reference to the module. */
static struct file *open_attachment(struct attachment *attachment, bool writable)
{
	struct file *file;

	__module_get(THIS_MODULE);
	ihold(attachment->inode);
	file = alloc_file_pseudo(attachment->inode, inodes, "vmio", writable ? O_RDWR : O_RDONLY,
				 &attachment_file_operations);
	if (IS_ERR(file)) {
		iput(attachment->inode);
		module_put(THIS_MODULE);
	} else {
		file->private_data = attachment;
	}
	return file;
}

/* VMIO_ATTACH: a new descriptor. */
int attach(struct pool *pool, int fd, bool verify, unsigned long limit)
{
	struct attachment *attachment;
	struct file *backing, *file;
	int error, new;

	backing = fget(fd);
	if (!backing)
		return -EBADF;
	error = may_attach(backing);
	if (error)
		goto put_backing;
	new = get_unused_fd_flags(O_CLOEXEC);
	error = new;
	if (new < 0)
		goto put_backing;
	attachment = join(pool, backing, verify, limit);
	error = PTR_ERR_OR_ZERO(attachment);
	if (error)
		goto put_fd;
	file = open_attachment(attachment, backing->f_mode & FMODE_WRITE);
	error = PTR_ERR_OR_ZERO(file);
	if (error) {
		detach(attachment);
		goto put_fd;
	}
	fd_install(new, file);
	fput(backing);
	return new;
put_fd:
	put_unused_fd(new);
put_backing:
	fput(backing);
	return error;
}
