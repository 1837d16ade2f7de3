// Marks sections of a program while clang compiles it, as a person would with rmk.h: outer loops,
// and what lies between acquiring and releasing a mutex (RMK, section 5.2).
//
//     clang -O2 -g -fpass-plugin=rmk_sections.so -c server.c
//
// Works on clang's output before any optimisation, so that a section is what stands in the source.
// Promises: a program does what it did; each way out of a section leaves it, by an exit of its own
// as far as numbers go; a wait for work (accept, poll, a condition) is outside of sections; a name
// has the file, the line and the function. Rejects: words in ORBIT_SECTIONS that it does not know
// (the compilation fails). Leaves unmarked: functions that call themselves or setjmp, coroutines,
// loops with computed jumps, locks that stay held when a function returns.
//
// Marks are inline: a few instructions on the thread's slot of the record (../src/layout.rs), whose
// address each shared object caches for each thread. A thread's first mark calls the library.
//
// A section is closed by the thread alone, whatever opened it, so a way out that nobody sees
// (longjmp) leaves it open until its next execution closes it.

#include "names.h"
#include "options.h"

#include "llvm/ADT/SCCIterator.h"
#include "llvm/ADT/SmallPtrSet.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/Analysis/CFG.h"
#include "llvm/Analysis/CallGraph.h"
#include "llvm/Analysis/LoopInfo.h"
#include "llvm/Demangle/Demangle.h"
#include "llvm/IR/DebugInfoMetadata.h"
#include "llvm/IR/Dominators.h"
#include "llvm/IR/IRBuilder.h"
#include "llvm/IR/IntrinsicInst.h"
#include "llvm/IR/MDBuilder.h"
#include "llvm/IR/Module.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Passes/PassPlugin.h"
#include "llvm/Support/Path.h"
#include "llvm/Support/raw_ostream.h"
#include "llvm/Transforms/Utils/BasicBlockUtils.h"
#include "llvm/Transforms/Utils/EscapeEnumerator.h"
#include "llvm/Transforms/Utils/ModuleUtils.h"
#if __has_include("llvm/IR/EHPersonalities.h")
#include "llvm/IR/EHPersonalities.h"
#else
#include "llvm/Analysis/EHPersonalities.h"
#endif

using namespace llvm;

namespace {

/// Exits of a section, as rmk.h numbers them: 0 to 4 in the order of the source, where there are
/// more the last of these counts for the rest; a wait; an exception.
constexpr unsigned LAST_WAY = 4, BY_WAIT = 5, BY_EXCEPTION = 6;

/// The record, as ../src/layout.rs has it: bytes of a cell, of a slot before its cells and
/// before the place of the section entered last, of a cell before its exits. The cell before the
/// first is nobody's: that of a section without a number, -1.
constexpr int CELL = 32, CELLS_AT = 64, LAST_AT = 4, EXITS_AT = 4;

/// Functions of more instructions than this are no cheap ones.
constexpr unsigned CHEAP = 24;

/// The function that a call names; null for pointers and intrinsics.
Function *named(const Instruction &i)
{
    auto *call = dyn_cast<CallBase>(&i);
    Function *callee = call ? call->getCalledFunction() : nullptr;
    return callee && !callee->isIntrinsic() ? callee : nullptr;
}

/// Whether two values are spelled the same: one lock, as far as the source says.
bool isSame(const Value *a, const Value *b, int depth = 8)
{
    if (a == b)
        return true;
    auto *x = dyn_cast<Instruction>(a), *y = dyn_cast<Instruction>(b);
    if (!x || !y || depth == 0 || !x->isSameOperationAs(y))
        return false;
    if (!isa<LoadInst>(x) && !isa<GetElementPtrInst>(x) && !isa<CastInst>(x) && !isa<BinaryOperator>(x))
        return false;
    for (unsigned n = 0; n < x->getNumOperands(); n++)
        if (!isSame(x->getOperand(n), y->getOperand(n), depth - 1))
            return false;
    return true;
}

bool isCheap(Function &callee)
{
    if (callee.isDeclaration())
        return names::isCheap(callee.getName());
    SmallVector<std::pair<const BasicBlock *, const BasicBlock *>, 1> back;
    FindFunctionBackedges(callee, back);
    unsigned instructions = 0;
    for (const BasicBlock &block : callee)
        for (const Instruction &i : block) {
            if (isa<CallBase>(i) && !isa<IntrinsicInst>(i))
                return false;
            instructions += !isa<DbgInfoIntrinsic>(i);
        }
    return back.empty() && instructions <= CHEAP;
}

/// A way out of a loop or back to its begin: the n-th successor of a block's last instruction.
struct Edge {
    BasicBlock *from;
    unsigned nth;

    BasicBlock *to() const { return from->getTerminator()->getSuccessor(nth); }
};

/// A new block on an edge; calls that are put into it run on that way only.
Instruction *onEdge(const Edge &edge)
{
    BasicBlock *to = edge.to();
    auto *block = BasicBlock::Create(to->getContext(), "section", to->getParent(), to);
    auto *jump = BranchInst::Create(to, block);
    jump->setDebugLoc(edge.from->getTerminator()->getDebugLoc());
    edge.from->getTerminator()->setSuccessor(edge.nth, block);
    for (PHINode &phi : to->phis())
        phi.setIncomingBlock(phi.getBasicBlockIndex(edge.from), block);
    return jump;
}

/// A mutex block: from its acquisition to the calls that release it.
struct LockBlock {
    CallInst *acquires;
    std::vector<Instruction *> releases, waits;
    /// Whether it holds the lock only where the acquisition answered 0.
    bool mayFail;
};

class Marker {
public:
    Marker(Module &module, const Options &options) : module(module), options(options)
    {
        LLVMContext &context = module.getContext();
        number = Type::getInt32Ty(context);
        distance = Type::getInt64Ty(context);
        Type *none = Type::getVoidTy(context);
        text = PointerType::get(Type::getInt8Ty(context), 0);
        registers = module.getOrInsertFunction("rmk_section", FunctionType::get(number, {text}, false));
        if (options.marksCall) {
            enters = module.getOrInsertFunction("rmk_section_enter", FunctionType::get(number, {number}, false));
            leaves = module.getOrInsertFunction("rmk_section_leave", FunctionType::get(none, {number, number}, false));
            doesNotThrow(enters), doesNotThrow(leaves);
        }
        doesNotThrow(registers);
    }

    bool run()
    {
        std::vector<Function *> functions;
        for (Function &f : module)
            if (isChosen(f))
                functions.push_back(&f);
        study();
        if (!options.marksCall && !functions.empty())
            writeMarks();
        for (Function *f : functions)
            mark(*f);
        if (!options.marksCall && sections.empty() && !functions.empty())
            removeMarks();
        registerAll();
        return !sections.empty();
    }

private:
    struct Section {
        GlobalVariable *id;
        std::string name;
    };

    Module &module;
    const Options &options;
    Type *number, *distance;
    PointerType *text;
    FunctionCallee registers, enters, leaves;
    GlobalVariable *cached = nullptr;
    std::vector<Section> sections;
    StringSet<> taken;
    SmallPtrSet<const Function *, 16> recursive, mayWait, mayWaitForCondition;

    static void doesNotThrow(FunctionCallee callee)
    {
        if (auto *function = dyn_cast<Function>(callee.getCallee()))
            function->setDoesNotThrow();
    }

    /// The functions that mark, which are always inlined.
    void writeMarks()
    {
        // One for each shared object and thread; null until the library was asked.
        const char *name = "rmk_section_cached_slot";
        cached = module.getGlobalVariable(name);
        if (!cached) {
            Constant *null = ConstantPointerNull::get(text);
            cached = new GlobalVariable(module, text, false, GlobalValue::LinkOnceODRLinkage, null, name, nullptr,
                                        GlobalValue::InitialExecTLSModel);
            cached->setVisibility(GlobalValue::HiddenVisibility);
            cached->setComdat(module.getOrInsertComdat(name));
        }
        enters = writeMark("rmk.enter", {distance}, [this](Function &f) { writeEnter(f); });
        leaves = writeMark("rmk.leave", {distance, distance}, [this](Function &f) { writeLeave(f); });
    }

    void removeMarks()
    {
        for (FunctionCallee mark : {enters, leaves})
            cast<Function>(mark.getCallee())->eraseFromParent();
        cached->eraseFromParent();
    }

    template <typename Write> FunctionCallee writeMark(const char *name, ArrayRef<Type *> arguments, Write write)
    {
        LLVMContext &context = module.getContext();
        auto *type = FunctionType::get(Type::getVoidTy(context), arguments, false);
        Function *f = Function::Create(type, GlobalValue::InternalLinkage, name, &module);
        f->addFnAttr(Attribute::AlwaysInline);
        f->setDoesNotThrow();
        write(*f);
        // The record is no memory of the program's: its sanitizers know nothing of it.
        for (BasicBlock &block : *f)
            for (Instruction &i : block)
                i.setMetadata("nosanitize", MDNode::get(context, {}));
        return f;
    }

    /// `slot->cells[id].seq |= 1, slot->last = id`: odd inside, and as it is if it is odd.
    void writeEnter(Function &f)
    {
        LLVMContext &context = module.getContext();
        auto *begin = BasicBlock::Create(context, "", &f), *first = BasicBlock::Create(context, "first", &f);
        auto *marks = BasicBlock::Create(context, "mark", &f);
        IRBuilder<> builder(begin);
        Value *known = builder.CreateLoad(text, cached);
        MDNode *seldom = MDBuilder(context).createBranchWeights(1, 1 << 20);
        builder.CreateCondBr(builder.CreateIsNull(known), first, marks, seldom);
        builder.SetInsertPoint(first);
        PointerType *place = PointerType::get(text, 0);
        FunctionCallee slotOf = module.getOrInsertFunction("rmk_section_slot", FunctionType::get(text, {place}, false));
        doesNotThrow(slotOf);
        Value *asked = builder.CreateCall(slotOf, {cached});
        builder.CreateBr(marks);
        builder.SetInsertPoint(marks);
        PHINode *slot = builder.CreatePHI(text, 2);
        slot->addIncoming(known, begin);
        slot->addIncoming(asked, first);
        Value *seq = word(builder, slot, f.getArg(0));
        put(builder, builder.CreateOr(get(builder, seq), 1), seq, AtomicOrdering::Monotonic);
        Value *last = word(builder, slot, builder.getInt64(LAST_AT));
        put(builder, builder.CreateTrunc(f.getArg(0), number), last, AtomicOrdering::Monotonic);
        builder.CreateFence(AtomicOrdering::SequentiallyConsistent, SyncScope::SingleThread);
        builder.CreateRetVoid();
    }

    /// If `seq` is odd, counts the exit, then the way out: `exits[exit]++, seq++`.
    void writeLeave(Function &f)
    {
        LLVMContext &context = module.getContext();
        auto *begin = BasicBlock::Create(context, "", &f), *marks = BasicBlock::Create(context, "mark", &f);
        auto *end = BasicBlock::Create(context, "end", &f);
        IRBuilder<> builder(begin);
        Value *slot = builder.CreateLoad(text, cached);
        MDNode *seldom = MDBuilder(context).createBranchWeights(1, 1 << 20);
        builder.CreateCondBr(builder.CreateIsNull(slot), end, marks, seldom);
        builder.SetInsertPoint(marks);
        Value *seq = word(builder, slot, f.getArg(0));
        Value *exit = word(builder, slot, builder.CreateAdd(f.getArg(0), f.getArg(1)));
        Value *inside = builder.CreateAnd(get(builder, seq), 1);
        put(builder, builder.CreateAdd(get(builder, exit), inside), exit, AtomicOrdering::Monotonic);
        put(builder, builder.CreateAdd(get(builder, seq), inside), seq, AtomicOrdering::Release);
        builder.CreateBr(end);
        builder.SetInsertPoint(end);
        builder.CreateRetVoid();
    }

    Value *word(IRBuilder<> &builder, Value *slot, Value *at)
    {
        Value *place = builder.CreateGEP(Type::getInt8Ty(module.getContext()), slot, at);
        return builder.CreateBitCast(place, PointerType::get(number, 0));
    }

    Value *get(IRBuilder<> &builder, Value *from)
    {
        LoadInst *load = builder.CreateAlignedLoad(number, from, Align(4));
        load->setAtomic(AtomicOrdering::Monotonic);
        return load;
    }

    void put(IRBuilder<> &builder, Value *what, Value *to, AtomicOrdering ordering)
    {
        builder.CreateAlignedStore(what, to, Align(4))->setAtomic(ordering);
    }

    bool isChosen(const Function &f) const
    {
        if (f.isDeclaration() || f.hasAvailableExternallyLinkage() || f.hasFnAttribute(Attribute::Naked))
            return false;
        return (options.functions.empty() || isNamed(f, options.functions)) && !isNamed(f, options.skipped);
    }

    static bool isNamed(const Function &f, const Globs &globs)
    {
        return !globs.empty() && (globs.match(f.getName()) || globs.match(demangle(f.getName().str())));
    }

    /// Which functions call themselves, and which may wait, as far as this file shows.
    void study()
    {
        CallGraph graph(module);
        for (auto group = scc_begin(&graph); !group.isAtEnd(); ++group) {
            bool waits = false, forCondition = false;
            for (CallGraphNode *node : *group) {
                if (!node->getFunction())
                    continue;
                for (const BasicBlock &block : *node->getFunction())
                    for (const Instruction &i : block) {
                        waits |= isWait(i);
                        forCondition |= isConditionWait(i);
                    }
            }
            for (CallGraphNode *node : *group) {
                if (group.hasCycle())
                    recursive.insert(node->getFunction());
                if (waits)
                    mayWait.insert(node->getFunction());
                if (forCondition)
                    mayWaitForCondition.insert(node->getFunction());
            }
        }
    }

    bool isWait(const Instruction &i) const
    {
        Function *callee = named(i);
        return callee && (mayWait.count(callee) || options.isWait(callee->getName()));
    }

    bool isConditionWait(const Instruction &i) const
    {
        Function *callee = named(i);
        return callee && (mayWaitForCondition.count(callee) || options.isConditionWait(callee->getName()));
    }

    /// Whether an execution of the loop may be expected to take far longer than a pair of marks.
    bool isCoarse(const Loop &loop) const
    {
        if (!loop.getSubLoops().empty())
            return true;
        for (const BasicBlock *block : loop.blocks())
            for (const Instruction &i : *block) {
                auto *call = dyn_cast<CallBase>(&i);
                if (!call || isa<IntrinsicInst>(i) || call->isInlineAsm() || isWait(i))
                    continue;
                Function *callee = named(i);
                if (!callee || !isCheap(*callee))
                    return true;
            }
        return false;
    }

    void say(const Twine &what) const
    {
        if (options.reports)
            errs() << "rmk_sections: " << what << "\n";
    }

    /// Why nothing of this function is marked; null: it may be.
    const char *unfit(const Function &f) const
    {
        if (recursive.count(&f))
            return "it calls itself";
        if (f.hasPersonalityFn() && isScopedEHPersonality(classifyEHPersonality(f.getPersonalityFn())))
            return "its exceptions are of a kind that is not handled";
        for (const BasicBlock &block : f)
            for (const Instruction &i : block) {
                auto *call = dyn_cast<CallBase>(&i);
                Function *callee = call ? call->getCalledFunction() : nullptr;
                if (call && call->hasFnAttr(Attribute::ReturnsTwice))
                    return "it calls setjmp, or the like";
                if (callee && callee->getName().substr(0, 10) == "llvm.coro.")
                    return "it is a coroutine";
            }
        return nullptr;
    }

    void mark(Function &f)
    {
        DominatorTree dominators(f);
        LoopInfo loops(dominators);
        std::vector<LockBlock> blocks = options.marksLocks ? lockBlocks(f) : std::vector<LockBlock>();
        std::vector<Loop *> outer;
        // LoopInfo has the last one first.
        for (Loop *loop : loops)
            if (options.loops == Options::Loops::All || (options.loops == Options::Loops::Coarse && isCoarse(*loop)))
                outer.insert(outer.begin(), loop);
        if (blocks.empty() && outer.empty())
            return;
        if (const char *why = unfit(f)) {
            say("nothing of " + demangle(f.getName().str()) + " is marked: " + why);
            return;
        }
        size_t first = sections.size();
        for (Loop *loop : outer)
            markLoop(f, *loop);
        for (LockBlock &block : blocks)
            markLock(f, block);
        if (first == sections.size() || f.doesNotThrow())
            return;
        EscapeEnumerator escapes(f, "section.unwind");
        while (IRBuilder<> *builder = escapes.Next())
            if (!isa<ReturnInst>(*builder->GetInsertPoint()))
                for (size_t nth = first; nth < sections.size(); nth++)
                    leave(&*builder->GetInsertPoint(), sections[nth].id, BY_EXCEPTION);
    }

    void markLoop(Function &f, Loop &loop)
    {
        DebugLoc place = loop.getStartLoc();
        BasicBlock *header = loop.getHeader();
        std::vector<BasicBlock *> before;
        std::vector<Edge> out, back;
        std::vector<CallBase *> waits;
        for (BasicBlock *block : predecessors(header))
            if (!loop.contains(block) && !is_contained(before, block))
                before.push_back(block);
        bool computed = header->isEHPad();
        for (BasicBlock *block : before)
            computed |= jumpsAsComputed(*block);
        bool ends = false;
        for (BasicBlock &block : f) {
            if (!loop.contains(&block))
                continue;
            computed |= jumpsAsComputed(block);
            Instruction *last = block.getTerminator();
            for (unsigned nth = 0; nth < last->getNumSuccessors(); nth++) {
                BasicBlock *to = last->getSuccessor(nth);
                if (to == header)
                    back.push_back({&block, nth});
                if (loop.contains(to))
                    continue;
                out.push_back({&block, nth});
                ends |= !isa<UnreachableInst>(to->getTerminator()) && !to->isEHPad();
            }
            for (Instruction &i : block)
                if (isWait(i))
                    waits.push_back(cast<CallBase>(&i));
        }
        std::string name = nameOf(f, "loop", place);
        if (computed) {
            say(name + " is not marked: it has computed jumps");
            return;
        }
        GlobalVariable *id = section(name);
        bool iterates = !ends || isNamed(f, options.iterated);
        say(name + (iterates ? ": each iteration is an execution" : ""));

        for (CallBase *wait : waits)
            around(wait, id, [&](BasicBlock *to) { return loop.contains(to); });
        unsigned way = iterates ? 1 : 0;
        SmallPtrSet<BasicBlock *, 4> pads;
        for (const Edge &edge : out) {
            if (edge.to()->isEHPad()) {
                if (pads.insert(edge.to()).second)
                    leave(&*edge.to()->getFirstInsertionPt(), id, BY_EXCEPTION);
                continue;
            }
            leave(onEdge(edge), id, std::min(way++, LAST_WAY));
        }
        if (iterates)
            for (const Edge &edge : back) {
                Instruction *at = onEdge(edge);
                leave(at, id, 0);
                enter(at, id);
            }
        BasicBlock *entry = SplitBlockPredecessors(header, before, ".section");
        enter(entry->getTerminator(), id);
    }

    static bool jumpsAsComputed(const BasicBlock &block)
    {
        const Instruction *last = block.getTerminator();
        return isa<IndirectBrInst>(last) || isa<CallBrInst>(last);
    }

    void markLock(Function &f, LockBlock &block)
    {
        std::string name = nameOf(f, "lock", block.acquires->getDebugLoc());
        GlobalVariable *id = section(name);
        say(name);
        for (Instruction *wait : block.waits)
            around(cast<CallBase>(wait), id, [](BasicBlock *) { return true; });
        unsigned way = 0;
        for (Instruction *release : block.releases)
            leave(release, id, std::min(way++, LAST_WAY));
        Instruction *after = block.acquires->getNextNode();
        if (block.mayFail) {
            IRBuilder<> builder(after);
            Value *acquired = builder.CreateICmpEQ(block.acquires, ConstantInt::get(block.acquires->getType(), 0));
            after = SplitBlockAndInsertIfThen(acquired, after, false);
        }
        enter(after, id);
    }

    /// The mutex blocks of a function: those of which each way that returns has released the lock.
    std::vector<LockBlock> lockBlocks(Function &f)
    {
        std::vector<LockBlock> found;
        for (BasicBlock &block : f)
            for (Instruction &i : block) {
                auto *acquires = dyn_cast<CallInst>(&i);
                Function *callee = named(i);
                if (!acquires || !callee || acquires->arg_size() == 0 || acquires->isMustTailCall())
                    continue;
                StringRef releasing = options.released(callee->getName());
                if (releasing.empty())
                    continue;
                // What others name acquires when it returns.
                bool isKnown = !names::released(callee->getName()).empty();
                LockBlock lock{acquires, {}, {}, isKnown && names::mayFail(callee->getName())};
                if (follow(lock, releasing) && !lock.releases.empty())
                    found.push_back(lock);
                else
                    say(nameOf(f, "lock", acquires->getDebugLoc(), false) +
                        " is not marked: the function may return without releasing it");
            }
        return found;
    }

    /// Follows all ways from the acquisition to the releases. `false`: one of them returns before.
    bool follow(LockBlock &lock, StringRef releasing) const
    {
        Value *mutex = lock.acquires->getArgOperand(0);
        SmallPtrSet<const BasicBlock *, 16> seen;
        std::vector<Instruction *> begins{lock.acquires->getNextNode()};
        while (!begins.empty()) {
            Instruction *i = begins.back();
            begins.pop_back();
            bool held = true;
            for (; i && held; i = i->getNextNode()) {
                Function *callee = named(*i);
                auto *call = dyn_cast<CallBase>(i);
                if (callee && callee->getName() == releasing && isSame(call->getArgOperand(0), mutex)) {
                    lock.releases.push_back(i);
                    held = false;
                } else if (i == lock.acquires) {
                    held = false;
                } else if (isConditionWait(*i)) {
                    lock.waits.push_back(i);
                } else if (isa<ReturnInst>(i)) {
                    return false;
                }
                if (!held || !i->isTerminator())
                    continue;
                BasicBlock *without = notAcquired(*lock.acquires, *i);
                lock.mayFail |= without != nullptr;
                for (BasicBlock *next : successors(i->getParent()))
                    if (next != without && seen.insert(next).second)
                        begins.push_back(&*next->begin());
            }
        }
        return true;
    }

    /// Where a branch leads if the acquisition answered that it failed; null: the branch is not
    /// about that.
    static BasicBlock *notAcquired(const CallInst &acquires, const Instruction &last)
    {
        auto *branch = dyn_cast<BranchInst>(&last);
        auto *compares = branch && branch->isConditional() ? dyn_cast<ICmpInst>(branch->getCondition()) : nullptr;
        auto *zero = compares ? dyn_cast<ConstantInt>(compares->getOperand(1)) : nullptr;
        if (!zero || !zero->isZero() || !compares->isEquality() || branch->getParent() != acquires.getParent())
            return nullptr;
        const Value *answer = compares->getOperand(0);
        if (answer != &acquires) {
            // `error = lock(..); if (error)`: the answer was stored in between.
            auto *load = dyn_cast<LoadInst>(answer);
            bool stored = false;
            for (const User *user : acquires.users()) {
                auto *store = dyn_cast<StoreInst>(user);
                stored |= load && store && isa<AllocaInst>(store->getPointerOperand()) &&
                    store->getPointerOperand() == load->getPointerOperand();
            }
            if (!stored)
                return nullptr;
        }
        return branch->getSuccessor(compares->getPredicate() == ICmpInst::ICMP_EQ ? 1 : 0);
    }

    /// The thread is outside of a section during a call; inside again if the call returns to where
    /// the section is.
    template <typename Within> void around(CallBase *call, GlobalVariable *id, Within within)
    {
        leave(call, id, BY_WAIT);
        if (isa<CallInst>(call))
            enter(call->getNextNode(), id);
        else if (auto *invoke = dyn_cast<InvokeInst>(call))
            if (within(invoke->getNormalDest()))
                enter(onEdge({invoke->getParent(), 0}), id);
    }

    void enter(Instruction *before, GlobalVariable *id)
    {
        IRBuilder<> builder(before);
        builder.CreateCall(enters, {builder.CreateLoad(id->getValueType(), id)})->setDoesNotThrow();
    }

    void leave(Instruction *before, GlobalVariable *id, unsigned exit)
    {
        IRBuilder<> builder(before);
        Value *way = options.marksCall ? builder.getInt32(exit) : builder.getInt64(EXITS_AT + 4 * exit);
        builder.CreateCall(leaves, {builder.CreateLoad(id->getValueType(), id), way})->setDoesNotThrow();
    }

    /// `server.c:42 loop in serve`; without debug information `server.c loop in serve`. No other
    /// section of this file has it, and it fits whole into the record.
    std::string nameOf(const Function &f, const char *kind, const DebugLoc &place, bool takes = true)
    {
        StringRef file = place ? cast<DIScope>(place.getScope())->getFilename() : module.getSourceFileName();
        std::string name = sys::path::filename(file).str();
        if (place)
            name += ":" + std::to_string(place.getLine());
        name = (name + " " + kind + " in " + demangle(f.getName().str())).substr(0, 58);
        std::string unique = name;
        for (int nth = 2; takes && !taken.insert(unique).second; nth++)
            unique = name + " #" + std::to_string(nth);
        return unique;
    }

    GlobalVariable *section(const std::string &name)
    {
        // A number for calls, else where in a slot its cell begins.
        Type *type = options.marksCall ? number : distance;
        Constant *none = ConstantInt::getSigned(type, options.marksCall ? -1 : CELLS_AT - CELL);
        auto *id = new GlobalVariable(module, type, false, GlobalValue::InternalLinkage, none, "rmk.section");
        sections.push_back({id, name});
        return id;
    }

    /// Sections get their numbers before main runs: a signal handler, too, finds them there.
    void registerAll()
    {
        if (sections.empty())
            return;
        LLVMContext &context = module.getContext();
        auto *type = FunctionType::get(Type::getVoidTy(context), false);
        Function *all = Function::Create(type, GlobalValue::InternalLinkage, "rmk.register", &module);
        IRBuilder<> builder(BasicBlock::Create(context, "", all));
        for (const Section &section : sections) {
            Value *name = builder.CreateGlobalStringPtr(section.name);
            Value *id = builder.CreateCall(registers, {name});
            if (!options.marksCall) {
                Value *cells = builder.CreateMul(builder.CreateSExt(id, distance), builder.getInt64(CELL));
                id = builder.CreateAdd(cells, builder.getInt64(CELLS_AT));
            }
            builder.CreateStore(id, section.id);
        }
        builder.CreateRetVoid();
        appendToGlobalCtors(module, all, 101);
    }
};

class Sections : public PassInfoMixin<Sections> {
public:
    PreservedAnalyses run(Module &module, ModuleAnalysisManager &)
    {
        Options options = Options::fromEnvironment();
        if (!options.error.empty()) {
            module.getContext().emitError(options.error);
            return PreservedAnalyses::all();
        }
        StringRef file = module.getSourceFileName();
        if (!options.files.empty() && !options.files.match(file) && !options.files.match(sys::path::filename(file)))
            return PreservedAnalyses::all();
        return Marker(module, options).run() ? PreservedAnalyses::none() : PreservedAnalyses::all();
    }

    /// At -O0 as well.
    static bool isRequired() { return true; }
};

} // namespace

extern "C" LLVM_ATTRIBUTE_WEAK PassPluginLibraryInfo llvmGetPassPluginInfo()
{
    return {LLVM_PLUGIN_API_VERSION, "rmk_sections", "1", [](PassBuilder &builder) {
                builder.registerPipelineStartEPCallback(
                    [](ModulePassManager &passes, auto &&...) { passes.addPass(Sections()); });
            }};
}
