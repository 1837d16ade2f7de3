//! Derives: `Delegate`, the delegate of a large struct (section 4.6.3 of the orbit paper); `Value`
//! and `Answer`, what typed tasks take and return.
//!
//! Fields marked `#[delegate]` are those that a task reads. The derive makes a struct of just
//! those, named after the large one with `Delegate` appended, and implements how `orbit::Delegated`
//! fills it. Writes to the other fields then dirty no page that a snapshot must ship.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Fields, Result};

/// Makes `NameDelegate` from the fields of `Name` that are marked `#[delegate]`, which must be
/// `Copy`, and implements `orbit::Delegate`. For structs with named fields.
#[proc_macro_derive(Delegate, attributes(delegate))]
pub fn delegate(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    expand(&input).unwrap_or_else(Error::into_compile_error).into()
}

fn expand(input: &DeriveInput) -> Result<TokenStream> {
    let no = |what: &str| Err(Error::new(input.ident.span(), what));
    let Data::Struct(data) = &input.data else { return no("a delegate is made from a struct") };
    let Fields::Named(fields) = &data.fields else { return no("a delegate is made from a struct with named fields") };
    if !input.generics.params.is_empty() {
        return no("a delegate cannot be made from a generic struct: its layout must be one");
    }
    let mut names = Vec::new();
    let mut types = Vec::new();
    let mut docs = Vec::new();
    for field in &fields.named {
        let marked = field.attrs.iter().find(|a| a.path().is_ident("delegate"));
        let Some(mark) = marked else { continue };
        if !matches!(mark.meta, syn::Meta::Path(_)) {
            return Err(Error::new(mark.span(), "write #[delegate], without arguments"));
        }
        names.push(field.ident.as_ref());
        types.push(&field.ty);
        docs.push(format!("`{}` of the whole.", field.ident.as_ref().map(ToString::to_string).unwrap_or_default()));
    }
    if names.is_empty() {
        return no("no field is marked #[delegate]: mark those that the task reads");
    }
    let (whole, visible) = (&input.ident, &input.vis);
    let part = format_ident!("{whole}Delegate");
    let about = format!("What a task sees of a [`{whole}`].");
    Ok(quote! {
        #[doc = #about]
        #[repr(C)]
        #[derive(Clone, Copy)]
        #visible struct #part {
            #( #[doc = #docs] #visible #names: #types, )*
        }

        impl ::orbit::Delegate for #whole {
            type Object = #part;

            fn delegate(&self) -> #part {
                #part { #( #names: self.#names, )* }
            }
        }
    })
}

/// Implements `orbit::Value` for a struct whose fields are: a typed task may take it.
#[proc_macro_derive(Value)]
pub fn value(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    let expanded = fields(&input).map(|(types, places)| {
        let name = &input.ident;
        let constructor = match &input.data {
            Data::Struct(data) if matches!(data.fields, Fields::Unit) => quote! { #name },
            _ => quote! { #name { #( #places: unsafe { <#types as ::orbit::Value>::read(from) }?, )* } },
        };
        quote! {
            // SAFETY: writes and reads the fields, in order.
            unsafe impl ::orbit::Value for #name {
                const BYTES: ::core::option::Option<usize> = {
                    let bytes = ::core::option::Option::Some(0usize);
                    #( let bytes = ::orbit::value::both(bytes, <#types as ::orbit::Value>::BYTES); )*
                    bytes
                };

                fn write(&self, out: &mut ::std::vec::Vec<u8>) {
                    let _ = &out;
                    #( ::orbit::Value::write(&self.#places, out); )*
                }

                unsafe fn read(from: &mut &[u8]) -> ::core::option::Option<Self> {
                    let _ = &from;
                    // SAFETY: the caller's promise holds for each field.
                    ::core::option::Option::Some(#constructor)
                }
            }
        }
    });
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

/// Implements `orbit::Answer` for a struct with `Value` whose fields all are `Answer`s: a typed
/// task may return it.
#[proc_macro_derive(Answer)]
pub fn answer(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    let expanded = fields(&input).map(|(types, _)| {
        let name = &input.ident;
        quote! {
            const _: () = {
                const fn is_answer<T: ::orbit::Answer>() {}
                #( is_answer::<#types>(); )*
            };
            // SAFETY: each field is one, as checked above.
            unsafe impl ::orbit::Answer for #name {}
        }
    });
    expanded.unwrap_or_else(Error::into_compile_error).into()
}

/// Types and names (or numbers) of a struct's fields.
fn fields(input: &DeriveInput) -> Result<(Vec<&syn::Type>, Vec<syn::Member>)> {
    let Data::Struct(data) = &input.data else {
        return Err(Error::new(input.ident.span(), "for structs; put what an enum says into numbers and options"));
    };
    if !input.generics.params.is_empty() {
        return Err(Error::new(input.generics.span(), "not for generic structs"));
    }
    Ok((data.fields.iter().map(|field| &field.ty).collect(), data.fields.members().collect()))
}
