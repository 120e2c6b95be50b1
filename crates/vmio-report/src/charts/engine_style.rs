//! The look of an engine in every chart: a colour and a shape of its own.

use maud::{Markup, html};

use super::coordinate::px;

/// The colour and the shape of the marks of an engine.
#[derive(Clone, Copy)]
pub struct EngineStyle {
    index: usize,
}

/// Colours (on white, on black) that people with the common kinds of colour blindness can tell apart, at least 3:1 against the paper.
const COLOURS: [(&str, &str); 11] = [
    ("#0b6bb8", "#58a9f0"),
    ("#d1480c", "#ff8a4c"),
    ("#0f8a6c", "#2fc795"),
    ("#4a1a66", "#f0e04a"),
    ("#cf72ab", "#f2b8dd"),
    ("#2b2d33", "#e8eaee"),
    ("#7a5a00", "#c9a33a"),
    ("#b0123c", "#ff7d96"),
    ("#5c7a12", "#a9cf4d"),
    ("#1414f0", "#6a6afc"),
    ("#00008c", "#c8189a"),
];

/// Circle, square, triangle, diamond, triangle on its head. Their number and that of the colours have
/// no common divisor, so that engines with the same colour differ in shape.
const SHAPES: [&str; 5] = [
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0z",
    "M-4 -4h8v8h-8z",
    "M0 -5.2L5.2 4H-5.2z",
    "M0 -5.6L5.6 0L0 5.6L-5.6 0z",
    "M0 5.2L5.2 -4H-5.2z",
];

impl EngineStyle {
    /// The style of an engine by its number, or of a line by its place in the legend.
    pub fn numbered(index: usize) -> Self {
        Self { index }
    }

    /// The class that sets the colour.
    pub fn class(self) -> String {
        format!("e{}", self.index % COLOURS.len())
    }

    /// The engine's mark at a place. It says `title` when somebody points at it.
    pub fn mark(self, x: f64, y: f64, title: &str) -> Markup {
        html! {
            path class={ "mark " (self.class()) } d=(SHAPES[self.index % SHAPES.len()])
                transform={ "translate(" (px(x)) " " (px(y)) ")" } { title { (title) } }
        }
    }

    /// The rules that give each class its colour: on white paper, or on black.
    pub fn rules(dark: bool) -> String {
        let rule = |(index, (light_colour, dark_colour)): (usize, &(&str, &str))| {
            format!(".e{index} {{ color: {} }}\n", if dark { dark_colour } else { light_colour })
        };
        COLOURS.iter().enumerate().map(rule).collect()
    }
}
