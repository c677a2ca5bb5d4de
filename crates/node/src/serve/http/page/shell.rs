//! What all pages have: the frame, refusals, the token's field, and who sees how much.

use axum::{
    http::{HeaderMap, StatusCode},
    response::{Html, IntoResponse as _, Response},
};
use drainprof_report::export::shown;
use maud::{DOCTYPE, Markup, html};
use serde::{Serialize, de::DeserializeOwned};

use super::super::{guard::Access, shared::Shared};
use crate::Refusal;

/// Characters of a name, and of a sentence.
pub(super) const NAME_CHARS: usize = 64;
pub(super) const SENTENCE_CHARS: usize = 1_000;

/// Who sees it, and so how much is shown.
pub(super) struct View<'a> {
    pub(super) shared: &'a Shared,
    pub(super) access: Access,
}

impl View<'_> {
    /// A text of a process: for everybody, without addresses and directories.
    pub(super) fn text(&self, text: &str, most: usize) -> String {
        match self.access {
            Access::Full => shown(text, most),
            Access::Public => shown(&self.shared.redactor.text(text), most),
        }
    }

    /// A part of the state, the same as the API gives.
    pub(super) fn seen<T: Serialize + DeserializeOwned + Clone>(&self, value: &T) -> Option<T> {
        if self.access == Access::Full {
            return Some(value.clone());
        }
        let mut document = serde_json::to_value(value).ok()?;
        self.shared.redactor.json(&mut document);
        serde_json::from_value(document).ok()
    }
}

/// A page with this title and content; a `live` one follows the daemon's state.
pub(super) fn page(title: &str, live: bool, content: &Markup) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " – drainprof" }
                link rel="icon" href="data:,";
                link rel="stylesheet" href="/page.css";
                script src="/page.js" defer {}
            }
            body {
                nav aria-label="Pages" {
                    a href="/" { "Processes" }
                    a href="/help" { "Help" }
                    small #clock {}
                }
                main data-live[live] { h1 { (title) } (content) }
            }
        }
    };
    Html(page.into_string()).into_response()
}

/// A refusal as a page.
pub(super) fn refused(refusal: &Refusal) -> Response {
    let (status, title) = match refusal {
        Refusal::NotFound { .. } => (StatusCode::NOT_FOUND, "Not found"),
        Refusal::NotNow { .. } => (StatusCode::SERVICE_UNAVAILABLE, "Not now"),
        Refusal::Forbidden { .. } => (StatusCode::FORBIDDEN, "Not allowed"),
        Refusal::Failed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "Failed"),
    };
    let content = html! {
        p { (shown(&refusal.to_string(), SENTENCE_CHARS)) }
        p { a href="/" { "All processes" } }
    };
    (status, page(title, false, &content)).into_response()
}

/// A request that makes no sense.
pub(super) fn nonsense(message: String) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, refused(&Refusal::Failed { message })).into_response()
}

pub(super) fn not_found(what: &str) -> Response {
    refused(&Refusal::NotFound { message: format!("{what} does not exist") })
}

/// Whether a form was filled in on this page, with the token, where the request has not brought it otherwise.
pub(super) fn admitted(
    shared: &Shared,
    access: Access,
    headers: &HeaderMap,
    token: &str,
) -> Result<(), Refusal> {
    let foreign = headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin");
    if foreign {
        let message = "this form belongs to another site".to_owned();
        return Err(Refusal::Forbidden { message });
    }
    if access == Access::Full || shared.guard.is_token(token) {
        return Ok(());
    }
    let message = if shared.guard.has_token() {
        "this is not the token; the daemon's listen.token_file names its file"
    } else {
        "this needs a token, and listen.token_file names none; or ask on the control socket"
    };
    Err(Refusal::Forbidden { message: message.to_owned() })
}

/// The field for the token. The script's own requests bring it in a header, but a form's cannot.
pub(super) fn token_field(access: Access) -> Markup {
    let needed = access == Access::Public;
    html! {
        label { "Token" input type="password" name="token" required[needed] autocomplete="current-password"; }
    }
}
