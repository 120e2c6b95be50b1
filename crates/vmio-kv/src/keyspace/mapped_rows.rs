//! Rows in mapped memory, which goes back to the system at once, unlike memory of `malloc`.

use std::alloc::{Layout, handle_alloc_error};
use std::marker::PhantomData;
use std::mem::size_of;

use memmap2::MmapMut;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A list of rows with a capacity. The system gives memory only for the rows that are there.
pub(super) struct MappedRows<Row> {
    map: MmapMut,
    len: usize,
    row: PhantomData<Row>,
}

impl<Row: FromBytes + IntoBytes + Immutable> MappedRows<Row> {
    /// An empty list.
    pub(super) fn with_capacity(rows: usize) -> Self {
        let bytes = rows.max(1).saturating_mul(size_of::<Row>());
        let Ok(map) = MmapMut::map_anon(bytes) else {
            // As any other failed allocation does.
            handle_alloc_error(Layout::new::<Row>())
        };
        MappedRows { map, len: 0, row: PhantomData }
    }

    /// How many more rows there is space for.
    pub(super) fn space(&self) -> usize {
        self.map.len() / size_of::<Row>() - self.len
    }

    /// Adds a row, for which there must be space.
    pub(super) fn push(&mut self, row: &Row) {
        let at = self.len * size_of::<Row>();
        self.map[at..at + size_of::<Row>()].copy_from_slice(row.as_bytes());
        self.len += 1;
    }

    /// All rows.
    pub(super) fn rows(&self) -> &[Row] {
        let Ok(rows) = <[Row]>::ref_from_bytes(&self.map[..self.len * size_of::<Row>()]) else {
            unreachable!("a map begins at a page, and has whole rows");
        };
        rows
    }

    /// All rows, to be changed.
    pub(super) fn rows_mut(&mut self) -> &mut [Row] {
        let Ok(rows) = <[Row]>::mut_from_bytes(&mut self.map[..self.len * size_of::<Row>()]) else {
            unreachable!("a map begins at a page, and has whole rows");
        };
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_in_order_up_to_the_capacity() {
        let mut rows = MappedRows::<u32>::with_capacity(3000);
        while rows.space() > 0 {
            rows.push(&(rows.rows().len() as u32));
        }
        rows.rows_mut()[7] = 1;
        let expected: Vec<u32> = (0..3000).map(|row| if row == 7 { 1 } else { row }).collect();
        assert_eq!(rows.rows(), expected);
    }
}
