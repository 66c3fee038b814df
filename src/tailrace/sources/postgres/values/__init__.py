"""PostgreSQL's values to Arrow, a column at a time. Start at `decoders`.

decoders    which decoder a type has, for its binary and for its text form
lanes       walks the columns of many tuples at once; what it finds are
cells       where the values of one column lie in a buffer
binary      the binary form of fixed-width types, texts and bytes      numerics   of numeric
arrays      the structure of arrays; elements by the decoder of their type
rendering   the binary form of types that travel as text (ranges, composites, inet …)
    output      numbers and dates in those
literals    the text form
"""
