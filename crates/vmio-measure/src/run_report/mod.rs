//! `bench map --report`: its results in a file.

mod page;
mod setting;
mod sheet;

use vmio_report::report_file::ReportFile;

use crate::matrix::MatrixResult;

pub use setting::Setting;

/// Writes a page, or the charts alone where the file's name ends in .svg.
pub fn write(file: &ReportFile, setting: &Setting, result: &MatrixResult) -> anyhow::Result<()> {
    let text = if file.is_svg() { sheet::sheet(setting, result) } else { page::page(setting, result) };
    file.write_text(&text.into_string())
}
