/* SPDX-License-Identifier: GPL-2.0 */
/* Differences between Linux 6.1 and the newest. */
#ifndef VMIO_COMPAT_H
#define VMIO_COMPAT_H

#include <linux/mm.h>
#include <linux/mmap_lock.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 3, 0)
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 6, 0)
/* Before Linux handled faults of files under the lock of a VMA. */
static inline void release_fault_lock(struct vm_fault *vmf)
{
	mmap_read_unlock(vmf->vma->vm_mm);
}
#endif

#endif
