// SPDX-License-Identifier: GPL-2.0
/* /dev/vmio: each descriptor has a pool, to which files and devices are attached. */

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>

#include "module.h"
#include "uapi/vmio.h"

static long reserve(struct file *file, const void __user *argument)
{
	struct vmio_reserve reserve;
	struct pool *pool;

	if (copy_from_user(&reserve, argument, sizeof(reserve)))
		return -EFAULT;
	if (READ_ONCE(file->private_data))
		return -EBUSY;
	if (reserve.pages > ULONG_MAX >> PAGE_SHIFT)
		return -ENOMEM;
	pool = pool_create(reserve.pages);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	if (cmpxchg(&file->private_data, NULL, pool)) {
		pool_put(pool);
		return -EBUSY;
	}
	return 0;
}

static long resize(struct pool *pool, const void __user *argument)
{
	struct vmio_reserve request;

	if (!pool)
		return -EINVAL;
	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	if (request.pages > ULONG_MAX >> PAGE_SHIFT)
		return -ENOMEM;
	return pool_resize(pool, request.pages);
}

static long control_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct pool *pool = READ_ONCE(file->private_data);
	struct vmio_usage usage = {};
	struct vmio_attach request;
	struct vmio_counts counts;

	switch (command) {
	case VMIO_VERSION:
		return put_user(VMIO_ABI, (u32 __user *)argument);
	case VMIO_USAGE:
		if (!pool)
			return -EINVAL;
		pool_usage(pool, &usage);
		return report_usage(&usage, (void __user *)argument);
	case VMIO_COUNTS:
		if (!pool)
			return -EINVAL;
		statistics_report(&pool->statistics, &counts);
		return copy_to_user((void __user *)argument, &counts, sizeof(counts)) ? -EFAULT : 0;
	case VMIO_RESERVE:
		return reserve(file, (const void __user *)argument);
	case VMIO_RESIZE:
		return resize(pool, (const void __user *)argument);
	case VMIO_ATTACH:
		if (copy_from_user(&request, (const void __user *)argument, sizeof(request)))
			return -EFAULT;
		if (request.flags & ~VMIO_ATTACH_VERIFY || !pool)
			return -EINVAL;
		return attach(pool, request.fd, request.flags & VMIO_ATTACH_VERIFY,
			      min_t(u64, request.limit_pages, ULONG_MAX));
	default:
		return -ENOTTY;
	}
}

static int control_open(struct inode *inode, struct file *file)
{
	/* misc_open has stored its device there. */
	file->private_data = NULL;
	return 0;
}

static int control_release(struct inode *inode, struct file *file)
{
	if (file->private_data)
		pool_put(file->private_data);
	return 0;
}

static const struct file_operations control_operations = {
	.owner = THIS_MODULE,
	.open = control_open,
	.release = control_release,
	.unlocked_ioctl = control_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "vmio",
	.fops = &control_operations,
	.mode = 0600,
};

static int __init vmio_init(void)
{
	int error = write_back_init();

	if (error)
		return error;
	flush_init();
	error = misc_register(&device);
	if (error)
		write_back_exit();
	else
		statistics_init();
	return error;
}

static void __exit vmio_exit(void)
{
	misc_deregister(&device);
	statistics_exit();
	write_back_exit();
}

module_init(vmio_init);
module_exit(vmio_exit);
MODULE_DESCRIPTION("Memory-mapped I/O for fast storage");
MODULE_LICENSE("GPL");
