#include "free_blocks.h"

/* Below 0 where a block comes before another. */
static inline int compared(const block *a, const block *b) {
    int64_t size = a->is_mapped ? a->size : 0, other = b->is_mapped ? b->size : 0;
    if (size != other) {
        return size < other ? -1 : 1;
    }
    return (a->addr > b->addr) - (a->addr < b->addr);
}

/* Divides a tree into what comes before a block, to its left, and what comes behind it. */
static bool divide(block *tree, block *b) {
    block **low = &b->left, **high = &b->right, *low_up = b, *high_up = b;
    bool is_new = true;
    while (tree != NULL) {
        int order = compared(tree, b);
        is_new = is_new && order != 0;
        if (order < 0) {
            *low = tree;
            tree->up = low_up;
            low_up = tree;
            low = &tree->right;
            tree = tree->right;
        } else {
            *high = tree;
            tree->up = high_up;
            high_up = tree;
            high = &tree->left;
            tree = tree->left;
        }
    }
    *low = *high = NULL;
    return is_new;
}

bool blocks_insert(block_set *set, block *b) {
    block **at = &set->root, *up = NULL;
    bool is_new = true;
    while (*at != NULL && (*at)->priority >= b->priority) {
        int order = compared(*at, b);
        is_new = is_new && order != 0;
        up = *at;
        at = order < 0 ? &up->right : &up->left;
    }
    is_new = divide(*at, b) && is_new;
    b->up = up;
    *at = b;
    return is_new;
}

/* Joins two trees of which all of one comes before all of the other. */
static block *joined(block *low, block *high, block *up) {
    block *root = NULL, **at = &root;
    while (low != NULL && high != NULL) {
        bool is_low = low->priority >= high->priority;
        block *top = is_low ? low : high;
        *at = top;
        top->up = up;
        up = top;
        if (is_low) {
            at = &low->right;
            low = low->right;
        } else {
            at = &high->left;
            high = high->left;
        }
    }
    block *rest = low != NULL ? low : high;
    *at = rest;
    if (rest != NULL) {
        rest->up = up;
    }
    return root;
}

void blocks_remove(block_set *set, block *b) {
    block **at = &set->root;
    if (b->up != NULL) {
        at = b->up->left == b ? &b->up->left : &b->up->right;
    }
    *at = joined(b->left, b->right, b->up);
}

block *blocks_fit(const block_set *set, int64_t n_bytes) {
    block *best = NULL, *b = set->root;
    while (b != NULL) {
        bool is_enough = b->size >= n_bytes;
        best = is_enough ? b : best;
        b = is_enough ? b->left : b->right;
    }
    return best;
}

static block *leftmost(block *b) {
    while (b != NULL && b->left != NULL) {
        b = b->left;
    }
    return b;
}

static block *rightmost(block *b) {
    while (b != NULL && b->right != NULL) {
        b = b->right;
    }
    return b;
}

block *blocks_first(const block_set *set) { return leftmost(set->root); }
block *blocks_last(const block_set *set) { return rightmost(set->root); }

block *blocks_next(block *b) {
    if (b->right != NULL) {
        return leftmost(b->right);
    }
    while (b->up != NULL && b->up->right == b) {
        b = b->up;
    }
    return b->up;
}

block *blocks_before(block *b) {
    if (b->left != NULL) {
        return rightmost(b->left);
    }
    while (b->up != NULL && b->up->left == b) {
        b = b->up;
    }
    return b->up;
}
