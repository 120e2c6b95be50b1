//! A table in aligned text, in Markdown or in HTML.

use std::fmt::Write;

use maud::{Markup, html};

/// Rows under a header; the first column is text, the others are numbers.
pub struct Table {
    header: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(header: &[&str]) -> Self {
        Self { header: header.iter().map(|&name| name.to_owned()).collect(), rows: Vec::new() }
    }

    /// Adds a row as wide as the header.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.header.len());
        self.rows.push(cells);
    }

    /// The table as aligned text.
    pub fn text(&self) -> String {
        let widths: Vec<usize> = (0..self.header.len())
            .map(|column| self.lines().map(|line| line[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut text = String::new();
        for line in self.lines() {
            let mut row = String::new();
            for (column, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                // Writing to a string cannot fail.
                let _ = if column == 0 { write!(row, "{cell:<width$}") } else { write!(row, "  {cell:>width$}") };
            }
            text.push_str(row.trim_end());
            text.push('\n');
        }
        text
    }

    /// The table as Markdown.
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = line(&self.header);
        text.push_str("|---|");
        text.push_str(&"---:|".repeat(self.header.len() - 1));
        text.push('\n');
        for row in &self.rows {
            text.push_str(&line(row));
        }
        text
    }

    /// The table as HTML.
    pub fn html(&self) -> Markup {
        html! {
            table {
                thead { tr { @for name in &self.header { th scope="col" { (name) } } } }
                tbody { @for row in &self.rows { tr { @for cell in row { td { (cell) } } } } }
            }
        }
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> {
        std::iter::once(&self.header).chain(&self.rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_aligned_to_the_right() {
        let mut table = Table::new(&["engine", "p99"]);
        table.row(vec!["vmio".into(), "8.0".into()]);
        table.row(vec!["mmap".into(), "120.5".into()]);
        assert_eq!(table.text(), "engine    p99\nvmio      8.0\nmmap    120.5\n");
        assert!(table.html().into_string().contains("<tr><td>mmap</td><td>120.5</td></tr>"));
        assert_eq!(table.markdown(), "| engine | p99 |\n|---|---:|\n| vmio | 8.0 |\n| mmap | 120.5 |\n");
    }
}
