//! The daemon's page: what a browser shows at `/`. Rendered here, of the same parts as `-o html`; all of it can be read
//! without script. What a client without the token sees is what the API gives it.

mod answer;
mod live;
mod node;
mod past;
mod process;
mod window;

use axum::{
    Extension, Router,
    extract::DefaultBodyLimit,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    middleware,
    response::{Html, IntoResponse, Response},
    routing::{get, post},
};
use drainprof_report::export::{html, shown};
use maud::{DOCTYPE, Markup, html as markup};
pub(in crate::serve) use past::Past;
pub(super) use past::{Range, RangeQuery};
use serde::{Serialize, de::DeserializeOwned};

use super::{super::Limits, Shared, guard::Access};
use crate::Refusal;

/// What a page may do: load its script, style and data from here, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
     connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";
/// Characters of a name, and of a sentence.
const NAME: usize = 64;
const SENTENCE: usize = 1_000;

pub(super) fn router(limits: &Limits) -> Router<Shared> {
    Router::new()
        .route("/", get(node::page))
        .route("/process/{pid}", get(process::page))
        .route("/process/{pid}/window", post(window::open))
        .route("/window/{id}", get(window::about).post(window::report))
        .route("/compare", post(window::compare))
        .route("/help", get(help))
        .route("/page.css", get(live::style))
        .route("/page.js", get(live::script))
        .route("/events", get(live::events))
        .layer(DefaultBodyLimit::max(limits.body_bytes))
        .layer(middleware::map_response(protected))
}

/// Headers that keep a page to itself.
async fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        // A form's `Origin` is needed here, so nothing stricter.
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Who sees it, and so how much is shown.
struct View<'a> {
    shared: &'a Shared,
    access: Access,
}

impl View<'_> {
    /// A text of a process: for everybody, without addresses and directories.
    fn text(&self, text: &str, most: usize) -> String {
        match self.access {
            Access::Full => shown(text, most),
            Access::Public => shown(&self.shared.redactor.text(text), most),
        }
    }

    /// A part of the state, the same as the API gives.
    fn seen<T: Serialize + DeserializeOwned + Clone>(&self, value: &T) -> Option<T> {
        if self.access == Access::Full {
            return Some(value.clone());
        }
        let mut document = serde_json::to_value(value).ok()?;
        self.shared.redactor.json(&mut document);
        serde_json::from_value(document).ok()
    }
}

/// A page with this title and content; a `live` one follows the daemon's state.
fn page(title: &str, live: bool, content: &Markup) -> Response {
    let page = markup! {
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
fn refused(refusal: &Refusal) -> Response {
    let (status, title) = match refusal {
        Refusal::NotFound { .. } => (StatusCode::NOT_FOUND, "Not found"),
        Refusal::NotNow { .. } => (StatusCode::SERVICE_UNAVAILABLE, "Not now"),
        Refusal::Forbidden { .. } => (StatusCode::FORBIDDEN, "Not allowed"),
        Refusal::Failed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "Failed"),
    };
    let content = markup! {
        p { (shown(&refusal.to_string(), SENTENCE)) }
        p { a href="/" { "All processes" } }
    };
    (status, page(title, false, &content)).into_response()
}

/// A request that makes no sense.
fn nonsense(message: String) -> Response {
    (StatusCode::UNPROCESSABLE_ENTITY, refused(&Refusal::Failed { message })).into_response()
}

fn not_found(what: &str) -> Response {
    refused(&Refusal::NotFound { message: format!("{what} does not exist") })
}

/// Whether a form was filled in on this page, with the token, where the request has not brought it otherwise.
fn admitted(
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
fn token_field(access: Access) -> Markup {
    let needed = access == Access::Public;
    markup! {
        label { "Token" input type="password" name="token" required[needed] autocomplete="current-password"; }
    }
}

async fn help(Extension(_): Extension<Access>) -> Response {
    let content = markup! {
        p {
            "drainprof shows which granules (arenas, pools, slabs, pages) few long-lived objects keep from being given "
            "back. Open a process: the answer stands on top, in sentences. Select a time in a picture, and all that is "
            "below is of that time."
        }
        h2 { "Why is this not RSS?" }
        p {
            "RSS is all resident memory: live objects, free memory that the allocator keeps, and granules that are "
            "retained by few objects. Only the last two are waste. Retained bytes are the sizes of granules, "
            "touched or not, counted from level objects on; a census reads the heaps from outside and says what is free."
        }
        h2 { "What do I do?" }
        p {
            "Growing: open a diagnostic window; it names the call stacks. Pinned: allocate what lives long elsewhere, "
            "copy it out, or close when it is freed. Free: malloc_trim(0), or fewer arenas."
        }
        h2 { "What the numbers mean" }
        (html::glossary())
    };
    page("Help", false, &content)
}
