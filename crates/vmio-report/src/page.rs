//! The common parts of HTML pages. They need no network and no other file.

use maud::{Markup, html};

use crate::surroundings::Surroundings;

/// Closed as XML wants it, so that programs, too, can read the page.
pub const META: &str =
    r#"<meta charset="utf-8"/><meta name="viewport" content="width=device-width, initial-scale=1"/>"#;
/// The style of pages, without their charts.
pub const PAGE_STYLE: &str = include_str!("page.css");

/// The surroundings of a result, further facts by name, and the command.
pub fn fact_list(surroundings: &Surroundings, more: &[(&str, &str)]) -> Markup {
    html! {
        dl {
            @for (name, value) in surroundings.facts().iter().chain(more) { div { dt { (name) } dd { (value) } } }
            div { dt { "Command" } dd { code { (surroundings.command) } } }
        }
    }
}
